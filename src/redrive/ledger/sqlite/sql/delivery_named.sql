SELECT delivery_id FROM delivery WHERE seq = ?1
