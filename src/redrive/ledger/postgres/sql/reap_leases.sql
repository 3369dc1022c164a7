-- Leases that have expired. $1 now $2 limit $3 rows to pass over
SELECT s.seq, s.fence, s.generation, s.attempt, s.started_at, s.deferrals, s.leased_by
FROM {schema}.delivery_state s
WHERE s.disposition <= 1 AND (CASE WHEN s.disposition = 1 THEN s.leased_until ELSE s.deadline_at END) <= $1::bigint
  AND s.disposition = 1
ORDER BY (CASE WHEN s.disposition = 1 THEN s.leased_until ELSE s.deadline_at END)
LIMIT $2::bigint OFFSET $3::bigint
FOR UPDATE OF s SKIP LOCKED
