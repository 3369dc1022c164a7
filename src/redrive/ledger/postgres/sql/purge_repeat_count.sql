-- $1 seqs
DELETE FROM {schema}.repeat_count WHERE seq = ANY ($1::text::bigint[])
