-- $1 seq
SELECT dead_letter, generation, state, cause, category, attempts, died_at, ambiguous FROM {schema}.dead_letter
WHERE seq = $1::bigint
ORDER BY generation
