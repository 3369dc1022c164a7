-- Events, without the payload. ?1 after ?2 limit
SELECT e.event_seq, e.event_id, e.payload_hash, length(e.payload), e.accepted_at, e.fan_out,
       (SELECT count(*) FROM delivery d WHERE d.event_seq = e.event_seq)
FROM event e WHERE e.event_seq > ?1
ORDER BY e.event_seq LIMIT ?2
