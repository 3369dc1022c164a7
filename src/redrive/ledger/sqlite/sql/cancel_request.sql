UPDATE delivery_state SET cancel_requested = 1 WHERE seq = ?1 AND disposition = 1 AND cancel_requested = 0
