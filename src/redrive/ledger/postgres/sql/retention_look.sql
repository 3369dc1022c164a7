-- Deliveries in order of age, for retention: where each stands, when it was accepted, whether a dead letter of it is
-- open and, of one that has ended, when its last entry was written. $1 after $2 to $3 limit
SELECT s.seq, s.disposition, d.first_queued_at,
       EXISTS (SELECT 1 FROM {schema}.dead_letter l WHERE l.seq = s.seq AND l.state = 'open'),
       CASE WHEN s.disposition > 1
            THEN greatest(d.first_queued_at,
                          (SELECT max(a.ended_at) FROM {schema}.attempt a WHERE a.seq = s.seq),
                          (SELECT max(t.at) FROM {schema}.transition t WHERE t.seq = s.seq),
                          (SELECT max(l.died_at) FROM {schema}.dead_letter l WHERE l.seq = s.seq)) END
FROM {schema}.delivery_state s JOIN {schema}.delivery d ON d.seq = s.seq
WHERE s.seq > $1::bigint AND s.seq <= $2::bigint
ORDER BY s.seq LIMIT $3::bigint
