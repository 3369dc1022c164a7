-- Destinations that are disabled, and why. $1 how many
SELECT destination_id, tenant, name, disabled_at, disabled_why
FROM {schema}.destination
WHERE enabled = 0
ORDER BY name COLLATE "C", tenant COLLATE "C"
LIMIT $1::bigint
