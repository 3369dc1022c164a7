-- Whether the schema is there, what this user may do, whether anything is in it, and whether that is a ledger.
-- $1 the schema
SELECT n.oid IS NOT NULL,
       has_database_privilege(current_database(), 'CREATE'),
       coalesce(has_schema_privilege(n.oid, 'USAGE'), false),
       coalesce(has_schema_privilege(n.oid, 'CREATE'), false),
       EXISTS (SELECT FROM pg_class c WHERE c.relnamespace = n.oid)
         OR EXISTS (SELECT FROM pg_proc p WHERE p.pronamespace = n.oid)
         OR EXISTS (SELECT FROM pg_type t WHERE t.typnamespace = n.oid),
       (SELECT count(*) = 7 FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid
        WHERE c.relnamespace = n.oid AND c.relkind = 'r' AND NOT a.attisdropped
          AND (c.relname = 'schema_migration' AND a.attname IN ('version', 'name', 'digest', 'breaking', 'applied_at')
               OR c.relname = 'ledger' AND a.attname IN ('environment', 'created_at')))
FROM (SELECT $1::text AS name) wanted LEFT JOIN pg_namespace n ON n.nspname = wanted.name
