-- Events in order of age: when each was accepted, and whether its payload is still there. $1 after $2 limit
SELECT event_seq, accepted_at, purged_at IS NULL FROM {schema}.event WHERE event_seq > $1::bigint
ORDER BY event_seq LIMIT $2::bigint
