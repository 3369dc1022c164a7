-- What is due now, up to a cap, since when the oldest is, when the next one will be, and the open leases: how many, and
-- how many have run out. By indexes alone: a few steps for each route and priority, and the due ones. A lease lasts an
-- hour at most, so waiting work whose age ends later is not read for them. $1 now $2 cap $3 most routes
WITH RECURSIVE
route (route) AS (
  (SELECT route FROM {schema}.delivery_state WHERE disposition = 0 AND hold = 0 ORDER BY route LIMIT 1)
  UNION ALL
  SELECT (SELECT s.route FROM {schema}.delivery_state s
          WHERE s.disposition = 0 AND s.hold = 0 AND s.route > r.route ORDER BY s.route LIMIT 1)
  FROM route r WHERE r.route IS NOT NULL
),
place (route, priority) AS MATERIALIZED (
  SELECT r.route, p.priority
  FROM (SELECT route FROM route WHERE route IS NOT NULL LIMIT $3::bigint) r
  CROSS JOIN (VALUES (0::smallint), (1::smallint), (2::smallint), (3::smallint)) p (priority)
),
ends (oldest, next) AS MATERIALIZED (
  SELECT (SELECT s.available_at FROM {schema}.delivery_state s
          WHERE s.disposition = 0 AND s.hold = 0 AND s.route = p.route AND s.priority = p.priority
            AND s.available_at <= $1::bigint
          ORDER BY s.available_at LIMIT 1),
         (SELECT s.available_at FROM {schema}.delivery_state s
          WHERE s.disposition = 0 AND s.hold = 0 AND s.route = p.route AND s.priority = p.priority
            AND s.available_at > $1::bigint
          ORDER BY s.available_at LIMIT 1)
  FROM place p
)
SELECT (SELECT count(*) FROM (
          SELECT 1 FROM place p
          CROSS JOIN LATERAL (SELECT FROM {schema}.delivery_state s
                              WHERE s.disposition = 0 AND s.hold = 0 AND s.route = p.route
                                AND s.priority = p.priority AND s.available_at <= $1::bigint
                              ORDER BY s.available_at LIMIT $2::bigint) s
          LIMIT $2::bigint) AS counted),
       (SELECT min(oldest) FROM ends), (SELECT min(next) FROM ends),
       count(*), count(*) FILTER (WHERE leased_until <= $1::bigint)
FROM {schema}.delivery_state
WHERE disposition <= 1
  AND (CASE WHEN disposition = 1 THEN leased_until ELSE deadline_at END) <= $1::bigint + 3600000000
  AND disposition = 1
