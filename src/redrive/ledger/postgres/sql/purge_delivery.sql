-- $1 seqs
DELETE FROM {schema}.delivery WHERE seq = ANY ($1::text::bigint[])
