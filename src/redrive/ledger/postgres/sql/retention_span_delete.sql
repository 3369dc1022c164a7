-- Nothing is left of it. $1 after $2 to
DELETE FROM {schema}.retention_span WHERE after_seq = $1::bigint AND last_seq = $2::bigint
