-- Outer joins: half a delivery must be seen as half a delivery.
SELECT d.seq, d.delivery_id, d.handler, d.destination, d.policy_version, d.max_attempts, d.deadline_at,
       d.first_queued_at, d.first_due_at, coalesce(d.payload, e.payload) AS payload, e.event_id,
       s.disposition, s.hold, s.generation, s.attempt, s.max_attempts AS state_max, s.deadline_at AS state_deadline,
       s.available_at, s.fence, s.leased_by, s.leased_until, s.started_at, s.deferrals
FROM {schema}.delivery d
LEFT JOIN {schema}.delivery_state s ON s.seq = d.seq
LEFT JOIN {schema}.event e ON e.event_seq = d.event_seq
ORDER BY d.seq
