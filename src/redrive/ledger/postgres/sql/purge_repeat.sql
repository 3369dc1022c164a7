-- $1 seqs
DELETE FROM {schema}.repeat WHERE seq = ANY ($1::text::bigint[])
