SELECT event_type, schema FROM {schema}.event_schema ORDER BY event_type COLLATE "C"
