SELECT destination_id, tenant, name, scope, url, enabled, settings, disabled_at, disabled_why, created_at, updated_at
FROM {schema}.destination
WHERE destination_id = $1::text
