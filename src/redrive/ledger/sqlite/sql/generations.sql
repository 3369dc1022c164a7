-- ?1 seq
SELECT generation, replay_id, parent, max_attempts, deadline_at, opened_at FROM generation WHERE seq = ?1
ORDER BY generation
