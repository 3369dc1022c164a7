SELECT destination_id, tenant, name, scope, url, enabled, settings, disabled_at, disabled_why, created_at, updated_at
FROM destination
WHERE ?1 IS NULL OR tenant = ?1
ORDER BY tenant, name
