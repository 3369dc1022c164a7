SELECT count FROM receiver_duplicate WHERE destination = ?1
