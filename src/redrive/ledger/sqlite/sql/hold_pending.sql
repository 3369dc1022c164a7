-- Whether a destination has a waiting delivery that is not held. ?1 destination
SELECT EXISTS (
  SELECT 1 FROM delivery d INDEXED BY delivery_by_destination CROSS JOIN delivery_state s ON s.seq = d.seq
  WHERE d.destination = ?1 AND d.handler = 'webhook' AND s.disposition = 0 AND s.hold = 0
)
