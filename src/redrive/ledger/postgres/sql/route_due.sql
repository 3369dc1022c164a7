-- Due deliveries of one route and priority, up to a cap, and when the oldest became due.
-- $1 route $2 priority $3 now $4 cap
SELECT count(*), min(available_at) FROM (
  SELECT available_at FROM {schema}.delivery_state
  WHERE disposition = 0 AND hold = 0 AND route = $1::bigint AND priority = $2::smallint AND available_at <= $3::bigint
  ORDER BY available_at LIMIT $4::bigint
) AS due
