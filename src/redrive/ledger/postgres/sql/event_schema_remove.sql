DELETE FROM {schema}.event_schema WHERE event_type = $1::text
