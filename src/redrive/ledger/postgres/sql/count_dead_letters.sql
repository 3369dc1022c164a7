-- Open dead letters, dead letters of any state, and generations that left one behind, up to a cap. $1 cap
SELECT (SELECT count(*) FROM (SELECT 1 FROM {schema}.dead_letter WHERE state = 'open'
                              ORDER BY destination, cause, category, dead_letter LIMIT $1::bigint) AS counted),
       (SELECT count(*) FROM (SELECT 1 FROM {schema}.dead_letter ORDER BY dead_letter LIMIT $1::bigint) AS counted),
       (SELECT count(*) FROM (SELECT 1 FROM {schema}.generation ORDER BY seq, generation LIMIT $1::bigint) AS counted)
