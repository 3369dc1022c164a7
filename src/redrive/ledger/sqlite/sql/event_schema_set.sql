INSERT INTO event_schema (event_type, schema, updated_at) VALUES (?1, ?2, ?3)
ON CONFLICT (event_type) DO UPDATE SET schema = ?2, updated_at = ?3
