-- What is due now, up to a cap, since when the oldest is, when the next one will be, and the open leases: how many, and
-- how many have run out. By the ready index alone: a few steps for each route and priority, and the due ones.
-- ?1 now ?2 cap ?3 most routes
WITH RECURSIVE
route (route) AS (
  SELECT min(route) FROM delivery_state INDEXED BY delivery_state_ready WHERE disposition = 0 AND hold = 0
  UNION ALL
  SELECT (SELECT min(s.route) FROM delivery_state s INDEXED BY delivery_state_ready
          WHERE s.disposition = 0 AND s.hold = 0 AND s.route > r.route)
  FROM route r WHERE r.route IS NOT NULL
  LIMIT ?3
),
place (route, priority) AS MATERIALIZED (
  SELECT r.route, p.column1 FROM route r CROSS JOIN (VALUES (0), (1), (2), (3)) p WHERE r.route IS NOT NULL
),
ends (oldest, next) AS (
  SELECT (SELECT s.available_at FROM delivery_state s INDEXED BY delivery_state_ready
          WHERE s.disposition = 0 AND s.hold = 0 AND s.route = p.route AND s.priority = p.priority
            AND s.available_at <= ?1
          ORDER BY s.available_at LIMIT 1),
         (SELECT s.available_at FROM delivery_state s INDEXED BY delivery_state_ready
          WHERE s.disposition = 0 AND s.hold = 0 AND s.route = p.route AND s.priority = p.priority
            AND s.available_at > ?1
          ORDER BY s.available_at LIMIT 1)
  FROM place p
)
SELECT (SELECT count(*) FROM (
          SELECT 1 FROM place p CROSS JOIN delivery_state s INDEXED BY delivery_state_ready
          WHERE s.disposition = 0 AND s.hold = 0 AND s.route = p.route AND s.priority = p.priority
            AND s.available_at <= ?1
          LIMIT ?2)),
       min(oldest), min(next),
       (SELECT count(*) FROM delivery_state INDEXED BY delivery_state_leased WHERE disposition = 1),
       (SELECT count(*) FROM delivery_state INDEXED BY delivery_state_leased
        WHERE disposition = 1 AND leased_until <= ?1)
FROM ends
