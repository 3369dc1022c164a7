INSERT INTO schema_migration (version, name, digest, breaking, applied_at) VALUES (?1, ?2, ?3, ?4, ?5)
