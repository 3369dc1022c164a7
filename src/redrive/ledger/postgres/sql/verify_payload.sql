-- The payload that a delivery carries or shares. $1 from $2 to
SELECT d.seq, d.content_type, coalesce(d.payload, e.payload)
FROM {schema}.delivery d
LEFT JOIN LATERAL (SELECT e.payload, e.content_type FROM {schema}.event e
                   WHERE e.event_seq = d.event_seq OFFSET 0) AS e ON true
WHERE d.seq >= $1::bigint AND d.seq <= $2::bigint AND (d.payload IS NOT NULL OR d.content_type <> e.content_type)
