-- Facts, without the payload. The order is fold.Facts'. $1 after $2 to
SELECT d.seq, d.delivery_id, d.handler, d.tenant, d.scope, d.destination, d.event_seq, coalesce(length(d.payload), 0),
       d.content_type, d.envelope_version, d.policy_version, d.max_attempts, d.deadline_at, d.first_queued_at,
       d.first_due_at, d.first_hold, e.payload_hash, e.content_type
FROM {schema}.delivery d
LEFT JOIN LATERAL (SELECT e.payload_hash, e.content_type FROM {schema}.event e
                   WHERE e.event_seq = d.event_seq OFFSET 0) AS e ON true
WHERE d.seq > $1::bigint AND d.seq <= $2::bigint
