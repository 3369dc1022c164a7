-- How many identities there are, counted up to a cap. ?1 cap
SELECT l.environment, l.created_at, c.now, (SELECT max(version) FROM schema_migration),
       (SELECT count(*) FROM (SELECT 1 FROM identity LIMIT ?1))
FROM ledger l CROSS JOIN clock c
