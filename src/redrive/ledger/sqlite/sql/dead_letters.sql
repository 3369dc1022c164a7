-- ?1 seq
SELECT dead_letter, generation, state, cause, category, attempts, died_at, ambiguous FROM dead_letter WHERE seq = ?1
ORDER BY generation
