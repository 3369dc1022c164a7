-- Spans in which something may be due. Ended by then: $1 delivered $2 no_op $3 dead $4 cancelled; $5 looked at by then
SELECT after_seq, last_seq FROM {schema}.retention_span
WHERE delivered_at <= $1::bigint OR no_op_at <= $2::bigint OR dead_at <= $3::bigint OR cancelled_at <= $4::bigint
   OR (unfinished = 1 AND looked_at <= $5::bigint)
ORDER BY after_seq
