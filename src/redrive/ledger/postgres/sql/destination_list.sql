SELECT destination_id, tenant, name, scope, url, enabled, settings, disabled_at, disabled_why, created_at, updated_at
FROM {schema}.destination
WHERE $1::text IS NULL OR tenant = $1::text
ORDER BY tenant COLLATE "C", name COLLATE "C"
