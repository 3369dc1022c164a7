-- Of these deliveries those that have ended and have no open dead letter: seq, disposition, event. ?1 seqs
SELECT s.seq, s.disposition, d.event_seq
FROM json_each(?1) j CROSS JOIN delivery_state s ON s.seq = j.value CROSS JOIN delivery d ON d.seq = s.seq
WHERE s.disposition > 1 AND NOT EXISTS (SELECT 1 FROM dead_letter l WHERE l.seq = s.seq AND l.state = 'open')
ORDER BY s.seq
