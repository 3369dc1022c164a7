DELETE FROM subscription WHERE destination_id = ?1
