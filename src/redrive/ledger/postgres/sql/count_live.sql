-- Waiting and leased deliveries, up to a cap. $1 cap
SELECT count(*) FROM (
  SELECT 1 FROM {schema}.delivery_state WHERE disposition <= 1
  ORDER BY (CASE WHEN disposition = 1 THEN leased_until ELSE deadline_at END) LIMIT $1::bigint
) AS counted
