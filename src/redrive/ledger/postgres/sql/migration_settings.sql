-- For a transaction that changes the schema. $1 how long it may queue for one lock, as 3000ms
SELECT set_config('lock_timeout', $1, true), set_config('statement_timeout', '0', true),
       set_config('search_path', 'pg_catalog', true), set_config('client_min_messages', 'warning', true)
