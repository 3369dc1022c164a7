-- Waiting deliveries that are not held, up to a cap. $1 cap
SELECT count(*) FROM (
  SELECT 1 FROM {schema}.delivery_state WHERE disposition = 0 AND hold = 0
  ORDER BY route, priority, available_at, seq LIMIT $1::bigint
) AS counted
