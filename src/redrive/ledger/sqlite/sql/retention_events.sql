-- Events in order of age: when each was accepted, and whether its payload is still there. ?1 after ?2 limit
SELECT event_seq, accepted_at, purged_at IS NULL FROM event WHERE event_seq > ?1 ORDER BY event_seq LIMIT ?2
