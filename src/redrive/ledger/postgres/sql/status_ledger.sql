-- How many identities there are, counted up to a cap. $1 cap
SELECT l.environment, l.created_at, {schema}.clock_us(), (SELECT max(version) FROM {schema}.schema_migration),
       (SELECT count(*) FROM (SELECT 1 FROM {schema}.identity LIMIT $1::bigint) AS accepted)
FROM {schema}.ledger l
