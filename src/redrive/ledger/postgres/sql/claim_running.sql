-- Whether a server process is still at a claim whose client is gone. $1 pid
SELECT EXISTS (
  SELECT 1 FROM pg_stat_activity
  WHERE pid = $1::int AND pid <> pg_backend_pid() AND usename = session_user AND state <> 'idle'
    AND query LIKE '%{schema}.reserve_1(%'
)
