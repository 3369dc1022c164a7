SELECT event_type, schema FROM event_schema ORDER BY event_type
