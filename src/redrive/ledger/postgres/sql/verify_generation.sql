-- The order is fold.Generation's. $1 after $2 to
SELECT seq, generation, replay_id, parent, max_attempts, deadline_at, policy_version, opened_at
FROM {schema}.generation WHERE seq > $1::bigint AND seq <= $2::bigint
ORDER BY seq, generation
