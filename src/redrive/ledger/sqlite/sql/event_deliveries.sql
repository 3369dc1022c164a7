SELECT seq, delivery_id FROM delivery WHERE event_seq = ?1 ORDER BY seq
