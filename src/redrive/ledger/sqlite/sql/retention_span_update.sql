-- What is left of a span now. Parameters in column order.
UPDATE retention_span SET looked_at = ?3, unfinished = ?4, delivered_at = ?5, no_op_at = ?6, dead_at = ?7,
       cancelled_at = ?8
WHERE after_seq = ?1 AND last_seq = ?2
