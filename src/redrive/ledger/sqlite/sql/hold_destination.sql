-- Hold a chunk of a destination's waiting deliveries. ?1 destination ?2 after seq ?3 limit ?4 hold ?5 from hold
UPDATE delivery_state SET hold = ?4
WHERE seq IN (
  SELECT d.seq FROM delivery d CROSS JOIN delivery_state s ON s.seq = d.seq
  WHERE d.destination = ?1 AND d.handler = 'webhook' AND d.seq > ?2 AND s.disposition = 0 AND s.hold = ?5
  ORDER BY d.seq LIMIT ?3
)
RETURNING seq, generation, fence
