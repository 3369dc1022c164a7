-- Whether a destination has a waiting delivery with this hold. ?1 destination ?2 hold
SELECT EXISTS (
  SELECT 1 FROM delivery d CROSS JOIN delivery_state s ON s.seq = d.seq
  WHERE d.destination = ?1 AND d.handler = 'webhook' AND s.disposition = 0 AND s.hold = ?2
)
