-- $1 seqs
DELETE FROM {schema}.delivery_state WHERE seq = ANY ($1::text::bigint[])
