SELECT filter FROM subscription WHERE destination_id = ?1 ORDER BY filter
