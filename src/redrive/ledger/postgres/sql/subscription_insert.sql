INSERT INTO {schema}.subscription (destination_id, filter) VALUES ($1::text, $2::text) ON CONFLICT DO NOTHING
