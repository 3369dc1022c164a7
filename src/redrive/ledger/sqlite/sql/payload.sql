SELECT d.content_type, coalesce(d.payload, e.payload) FROM delivery d LEFT JOIN event e ON e.event_seq = d.event_seq
WHERE d.seq = ?1
