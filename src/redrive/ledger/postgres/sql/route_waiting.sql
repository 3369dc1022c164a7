-- Waiting deliveries of one route, up to a cap. $1 route $2 cap
SELECT count(*) FROM (
  SELECT 1 FROM {schema}.delivery_state
  WHERE disposition = 0 AND hold = 0 AND route = $1::bigint
  ORDER BY route, priority LIMIT $2::bigint
) AS waiting
