-- Waiting work past its age budget. $1 now $2 limit $3 rows to pass over
SELECT s.seq, d.envelope_version
FROM {schema}.delivery_state s
CROSS JOIN LATERAL (SELECT d.envelope_version FROM {schema}.delivery d WHERE d.seq = s.seq OFFSET 0) AS d
WHERE s.disposition <= 1 AND (CASE WHEN s.disposition = 1 THEN s.leased_until ELSE s.deadline_at END) <= $1::bigint
  AND s.disposition = 0
ORDER BY (CASE WHEN s.disposition = 1 THEN s.leased_until ELSE s.deadline_at END)
LIMIT $2::bigint OFFSET $3::bigint
FOR UPDATE OF s SKIP LOCKED
