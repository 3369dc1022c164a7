-- Due deliveries of one route and priority, in order, as the leases they become.
-- ?1 route ?2 priority ?3 now ?4 limit ?5 leased_until
SELECT s.seq, d.delivery_id, d.handler, d.tenant, d.scope, d.destination, s.generation, s.attempt + 1,
       s.max_attempts, s.deadline_at, s.fence + 1, ?3, ?5, s.deferrals, s.ambiguous, d.envelope_version,
       d.content_type, coalesce(d.payload, e.payload), i.payload_hash, d.policy_version, e.event_id, e.event_type,
       e.occurred_at
FROM delivery_state s INDEXED BY delivery_state_ready
CROSS JOIN delivery d ON d.seq = s.seq
CROSS JOIN identity i ON i.seq = s.seq
LEFT JOIN event e ON e.event_seq = d.event_seq
WHERE s.disposition = 0 AND s.hold = 0 AND s.route = ?1 AND s.priority = ?2 AND s.available_at <= ?3
  AND s.deadline_at > ?3
ORDER BY s.available_at, s.seq
LIMIT ?4
