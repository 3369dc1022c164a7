-- Waiting work past its age budget. ?1 now ?2 limit ?3 rows to pass over
SELECT s.seq, d.envelope_version
FROM delivery_state s INDEXED BY delivery_state_deadline CROSS JOIN delivery d ON d.seq = s.seq
WHERE s.disposition <= 1 AND s.deadline_at <= ?1 AND s.disposition = 0
ORDER BY s.deadline_at
LIMIT ?2 OFFSET ?3
