-- What is left of a span now. Parameters in column order.
UPDATE {schema}.retention_span SET looked_at = $3::bigint, unfinished = $4::smallint, delivered_at = $5::bigint,
       no_op_at = $6::bigint, dead_at = $7::bigint, cancelled_at = $8::bigint
WHERE after_seq = $1::bigint AND last_seq = $2::bigint
