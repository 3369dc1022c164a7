-- The order is fold.DeadLetter's. ?1 after ?2 to
SELECT seq, generation, state, handler, tenant, scope, destination, cause, category, attempts, first_at, last_at,
       ambiguous, policy_version, died_at
FROM dead_letter WHERE seq > ?1 AND seq <= ?2
ORDER BY seq, generation
