-- Deliveries in order of age, for retention: where each stands, when it was accepted, whether a dead letter of it is
-- open and, of one that has ended, when its last entry was written. ?1 after ?2 to ?3 limit
SELECT s.seq, s.disposition, i.first_seen,
       EXISTS (SELECT 1 FROM dead_letter l WHERE l.seq = s.seq AND l.state = 'open'),
       CASE WHEN s.disposition > 1
            THEN max(i.first_seen, coalesce((SELECT max(a.ended_at) FROM attempt a WHERE a.seq = s.seq), 0),
                     coalesce((SELECT max(t.at) FROM transition t WHERE t.seq = s.seq), 0),
                     coalesce((SELECT max(l.died_at) FROM dead_letter l WHERE l.seq = s.seq), 0)) END
FROM delivery_state s CROSS JOIN identity i ON i.seq = s.seq
WHERE s.seq > ?1 AND s.seq <= ?2
ORDER BY s.seq LIMIT ?3
