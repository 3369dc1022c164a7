-- $2 when; NULL is now
INSERT INTO {schema}.ledger (environment, created_at) VALUES ($1, coalesce($2, (SELECT {schema}.clock_us())))
