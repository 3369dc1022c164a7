SELECT 1 FROM {schema}.transition
WHERE seq = $1::bigint AND kind = $2::text AND fence = $3::bigint AND category IS NOT DISTINCT FROM $4::text
LIMIT 1
