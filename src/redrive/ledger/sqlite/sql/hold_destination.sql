-- Hold or release a chunk of a destination's waiting deliveries. ?1 destination ?2 limit ?3 hold ?4 from hold
-- ?5 after seq
UPDATE delivery_state SET hold = ?3
WHERE seq IN (
  SELECT d.seq FROM delivery d INDEXED BY delivery_by_destination CROSS JOIN delivery_state s ON s.seq = d.seq
  WHERE d.destination = ?1 AND d.seq > ?5 AND d.handler = 'webhook' AND s.disposition = 0 AND s.hold = ?4
  ORDER BY d.seq LIMIT ?2
)
RETURNING seq, generation, fence
