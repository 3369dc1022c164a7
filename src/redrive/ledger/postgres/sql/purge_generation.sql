-- $1 seqs
DELETE FROM {schema}.generation WHERE seq = ANY ($1::text::bigint[])
