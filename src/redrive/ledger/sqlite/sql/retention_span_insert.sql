-- What is left of a span; changes nothing when another run has recorded one from there. Parameters in column order.
INSERT INTO retention_span (after_seq, last_seq, looked_at, unfinished, delivered_at, no_op_at, dead_at, cancelled_at)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)
ON CONFLICT (after_seq) DO NOTHING
