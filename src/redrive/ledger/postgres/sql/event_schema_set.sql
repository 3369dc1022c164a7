INSERT INTO {schema}.event_schema (event_type, schema, updated_at) VALUES ($1::text, $2::text, $3::bigint)
ON CONFLICT (event_type) DO UPDATE SET schema = excluded.schema, updated_at = excluded.updated_at
