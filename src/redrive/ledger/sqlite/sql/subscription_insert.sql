INSERT INTO subscription (destination_id, filter) VALUES (?1, ?2) ON CONFLICT DO NOTHING
