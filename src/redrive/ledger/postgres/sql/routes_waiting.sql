-- Every route that has something waiting: from one to the next, by the index. $1 cap
WITH RECURSIVE r (route) AS (
  (SELECT route FROM {schema}.delivery_state WHERE disposition = 0 AND hold = 0 ORDER BY route LIMIT 1)
  UNION ALL
  SELECT (SELECT s.route FROM {schema}.delivery_state s
          WHERE s.disposition = 0 AND s.hold = 0 AND s.route > r.route ORDER BY s.route LIMIT 1)
  FROM r WHERE r.route IS NOT NULL
)
SELECT route FROM r WHERE route IS NOT NULL LIMIT $1::bigint
