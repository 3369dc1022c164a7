-- $1 from $2 to
SELECT event_seq, content_type, payload FROM {schema}.event
WHERE event_seq >= $1::bigint AND event_seq <= $2::bigint
