-- Leases that have expired. ?1 now ?2 limit ?3 rows to pass over
SELECT seq, fence, generation, attempt, started_at, deferrals, leased_by
FROM delivery_state INDEXED BY delivery_state_leased
WHERE disposition = 1 AND leased_until <= ?1
ORDER BY leased_until
LIMIT ?2 OFFSET ?3
