-- $1 seqs
DELETE FROM {schema}.attempt WHERE seq = ANY ($1::text::bigint[])
