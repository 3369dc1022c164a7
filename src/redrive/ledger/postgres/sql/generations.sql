-- $1 seq
SELECT generation, replay_id, parent, max_attempts, deadline_at, opened_at FROM {schema}.generation
WHERE seq = $1::bigint
ORDER BY generation
