-- Settings as a new session of this user has them, whatever this session has set since.
SELECT name, reset_val FROM pg_settings
WHERE name IN ('fsync', 'full_page_writes', 'synchronous_commit', 'autovacuum', 'track_counts',
               'default_transaction_isolation', 'default_transaction_read_only')
