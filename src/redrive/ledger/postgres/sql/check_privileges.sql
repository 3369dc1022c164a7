-- What this user may not do in the schema, and a worker must: kind, name, privilege. $1 the schema
WITH n AS (SELECT oid FROM pg_namespace WHERE nspname = $1::text)
SELECT 'SCHEMA', $1::text, 'USAGE' FROM n WHERE NOT has_schema_privilege(n.oid, 'USAGE')
UNION ALL
SELECT 'TABLE', c.relname::text, p.privilege
FROM n JOIN pg_class c ON c.relnamespace = n.oid AND c.relkind IN ('r', 'p')
  CROSS JOIN unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE']) AS p (privilege)
WHERE NOT has_table_privilege(c.oid, p.privilege) AND (p.privilege = 'SELECT' OR c.relname <> 'schema_migration')
UNION ALL
SELECT 'SEQUENCE', c.relname::text, 'USAGE'
FROM n JOIN pg_class c ON c.relnamespace = n.oid
WHERE CASE c.relkind WHEN 'S' THEN NOT has_sequence_privilege(c.oid, 'USAGE') END   -- an error for what is no sequence
UNION ALL
SELECT 'FUNCTION', f.proname::text, 'EXECUTE'
FROM n JOIN pg_proc f ON f.pronamespace = n.oid WHERE NOT has_function_privilege(f.oid, 'EXECUTE')
