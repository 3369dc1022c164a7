-- Events, without the payload; then when retention took it, and whether it has taken any delivery since the event was
-- accepted. ?1 after ?2 limit
SELECT e.event_seq, e.event_id, e.payload_hash, length(e.payload), e.accepted_at, e.fan_out,
       (SELECT count(*) FROM delivery d WHERE d.event_seq = e.event_seq), e.purged_at,
       EXISTS (SELECT 1 FROM identity i WHERE i.purged_at >= e.accepted_at)
         OR (SELECT r.forgotten_at FROM retention r) >= e.accepted_at
FROM event e WHERE e.event_seq > ?1
ORDER BY e.event_seq LIMIT ?2
