-- Due deliveries of one route and priority, in order, as one JSON array: a single step of a single statement, so that
-- reading a batch does not contend for the interpreter lock row by row. Short blobs as hex; the payloads end to end in
-- a second column, their lengths in the first: text to SQLite, which does not look into it, and read as bytes.
-- ?1 route ?2 priority ?3 now ?4 limit
SELECT json_group_array(json_array(seq, hex(delivery_id), handler, tenant, scope, destination, generation, attempt,
                                   max_attempts, deadline_at, fence, deferrals, ambiguous, envelope_version,
                                   content_type, length(payload), hex(payload_hash), policy_version, hex(event_id),
                                   event_type, occurred_at)),
       group_concat(CAST(payload AS TEXT), '')
FROM (
  SELECT s.seq, d.delivery_id, d.handler, d.tenant, d.scope, d.destination, s.generation, s.attempt + 1 AS attempt,
         s.max_attempts, s.deadline_at, s.fence + 1 AS fence, s.deferrals, s.ambiguous, d.envelope_version,
         d.content_type, coalesce(d.payload, e.payload) AS payload, i.payload_hash, d.policy_version, e.event_id,
         e.event_type, e.occurred_at
  FROM delivery_state s INDEXED BY delivery_state_ready
  CROSS JOIN delivery d ON d.seq = s.seq
  CROSS JOIN identity i ON i.seq = s.seq
  LEFT JOIN event e ON e.event_seq = d.event_seq
  WHERE s.disposition = 0 AND s.hold = 0 AND s.route = ?1 AND s.priority = ?2 AND s.available_at <= ?3
    AND s.deadline_at > ?3
  ORDER BY s.available_at, s.seq
  LIMIT ?4
)
