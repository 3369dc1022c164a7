-- The order is fold.DeadLetter's. $1 after $2 to
SELECT seq, generation, state, handler, tenant, scope, destination, cause, category, attempts, first_at, last_at,
       ambiguous, policy_version, died_at
FROM {schema}.dead_letter WHERE seq > $1::bigint AND seq <= $2::bigint
ORDER BY seq, generation
