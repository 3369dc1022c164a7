-- $1 seqs
DELETE FROM {schema}.transition WHERE seq = ANY ($1::text::bigint[])
