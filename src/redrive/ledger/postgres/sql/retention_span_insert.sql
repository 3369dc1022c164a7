-- What is left of a span; changes nothing when another run has recorded one from there. Parameters in column order.
INSERT INTO {schema}.retention_span
  (after_seq, last_seq, looked_at, unfinished, delivered_at, no_op_at, dead_at, cancelled_at)
VALUES ($1::bigint, $2::bigint, $3::bigint, $4::smallint, $5::bigint, $6::bigint, $7::bigint, $8::bigint)
ON CONFLICT (after_seq) DO NOTHING
