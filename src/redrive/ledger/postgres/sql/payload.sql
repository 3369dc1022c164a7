SELECT d.content_type, coalesce(d.payload, (SELECT e.payload FROM {schema}.event e WHERE e.event_seq = d.event_seq))
FROM {schema}.delivery d
WHERE d.seq = $1::bigint
