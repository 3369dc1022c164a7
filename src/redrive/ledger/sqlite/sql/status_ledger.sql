SELECT l.environment, l.created_at, c.now, (SELECT max(version) FROM schema_migration),
       coalesce((SELECT max(seq) FROM identity), 0)
FROM ledger l CROSS JOIN clock c
