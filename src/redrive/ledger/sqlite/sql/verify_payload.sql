-- The payload that a delivery carries or shares. ?1 from ?2 to
SELECT d.seq, d.content_type, coalesce(d.payload, e.payload)
FROM delivery d LEFT JOIN event e ON e.event_seq = d.event_seq
WHERE d.seq >= ?1 AND d.seq <= ?2 AND (d.payload IS NOT NULL OR d.content_type <> e.content_type)
