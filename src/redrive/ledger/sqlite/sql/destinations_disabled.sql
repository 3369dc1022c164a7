-- Destinations that are disabled, and why. ?1 how many
SELECT destination_id, tenant, name, disabled_at, disabled_why
FROM destination
WHERE enabled = 0
ORDER BY name, tenant
LIMIT ?1
