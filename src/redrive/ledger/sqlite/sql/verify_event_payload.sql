-- ?1 from ?2 to
SELECT event_seq, content_type, payload FROM event WHERE event_seq >= ?1 AND event_seq <= ?2
