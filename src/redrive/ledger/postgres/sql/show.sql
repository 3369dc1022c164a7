-- One delivery for people. The order is DeliveryView.from_row's. $1 seq
SELECT d.delivery_id, d.handler, d.tenant, d.scope, d.destination, d.key, e.event_id, e.event_type, e.event_key,
       s.disposition, s.hold, s.generation, s.attempt, s.max_attempts, s.deadline_at, s.available_at, s.fence,
       s.lane, s.priority, s.last_category, s.ambiguous, s.cancel_requested, s.deferrals, d.first_queued_at,
       d.first_due_at, d.content_type, d.envelope_version,
       coalesce((SELECT g.policy_version FROM {schema}.generation g
                 WHERE g.seq = s.seq AND g.generation = s.generation),
                d.policy_version),
       (SELECT w.name FROM {schema}.worker w WHERE w.worker = s.leased_by), s.started_at, s.leased_until
FROM {schema}.delivery d
JOIN {schema}.delivery_state s ON s.seq = d.seq
LEFT JOIN LATERAL (SELECT e.event_id, e.event_type, e.event_key FROM {schema}.event e
                   WHERE e.event_seq = d.event_seq OFFSET 0) AS e ON true
WHERE d.seq = $1::bigint
