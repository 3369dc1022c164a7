-- Whether a destination has a waiting delivery that is not held. The destination's deliveries lead, whatever the
-- statistics say (OFFSET 0 keeps the subqueries apart). $1 destination
SELECT EXISTS (
  SELECT 1
  FROM (
    SELECT d.seq FROM {schema}.delivery d WHERE d.destination = $1::text AND d.handler = 'webhook' OFFSET 0
  ) AS d CROSS JOIN LATERAL (
    SELECT 1 FROM {schema}.delivery_state s
    WHERE s.seq = d.seq AND s.disposition + 0 = 0 AND s.hold + 0 = 0 OFFSET 0
  ) AS s
)
