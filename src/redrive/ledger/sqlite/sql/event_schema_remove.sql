DELETE FROM event_schema WHERE event_type = ?1
