-- When the next waiting delivery of a route is due. $1 route
SELECT min(at) FROM (
  (SELECT available_at AS at FROM {schema}.delivery_state
   WHERE disposition = 0 AND hold = 0 AND route = $1::bigint AND priority = 0
   ORDER BY available_at LIMIT 1)
  UNION ALL
  (SELECT available_at AS at FROM {schema}.delivery_state
   WHERE disposition = 0 AND hold = 0 AND route = $1::bigint AND priority = 1
   ORDER BY available_at LIMIT 1)
  UNION ALL
  (SELECT available_at AS at FROM {schema}.delivery_state
   WHERE disposition = 0 AND hold = 0 AND route = $1::bigint AND priority = 2
   ORDER BY available_at LIMIT 1)
  UNION ALL
  (SELECT available_at AS at FROM {schema}.delivery_state
   WHERE disposition = 0 AND hold = 0 AND route = $1::bigint AND priority = 3
   ORDER BY available_at LIMIT 1)
) AS first
