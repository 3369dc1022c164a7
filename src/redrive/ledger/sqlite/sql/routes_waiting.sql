-- Every route that has something waiting: from one to the next, by the index. ?1 cap
WITH RECURSIVE r (route) AS (
  SELECT min(route) FROM delivery_state INDEXED BY delivery_state_ready WHERE disposition = 0 AND hold = 0
  UNION ALL
  SELECT (SELECT min(s.route) FROM delivery_state s INDEXED BY delivery_state_ready
          WHERE s.disposition = 0 AND s.hold = 0 AND s.route > r.route)
  FROM r WHERE r.route IS NOT NULL
  LIMIT ?1
)
SELECT route FROM r WHERE route IS NOT NULL
