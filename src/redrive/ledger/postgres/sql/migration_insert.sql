-- $5 when; NULL is now
INSERT INTO {schema}.schema_migration (version, name, digest, breaking, applied_at)
VALUES ($1, $2, $3, $4, coalesce($5, (SELECT {schema}.clock_us())))
