-- $1 seqs
DELETE FROM {schema}.dead_letter WHERE seq = ANY ($1::text::bigint[])
