UPDATE delivery_state SET disposition = 5, hold = 0 WHERE seq = ?1 AND disposition = 0
