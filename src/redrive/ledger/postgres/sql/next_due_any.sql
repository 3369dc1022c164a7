-- When the next waiting delivery of any of these routes is due. $1 routes
SELECT min(first.at)
FROM unnest($1::text::bigint[]) AS r (route) CROSS JOIN generate_series(0, 3) AS p (priority)
CROSS JOIN LATERAL (
  SELECT s.available_at AS at FROM {schema}.delivery_state s
  WHERE s.disposition = 0 AND s.hold = 0 AND s.route = r.route AND s.priority = p.priority
  ORDER BY s.available_at LIMIT 1
) AS first
