-- The sessions that a session waits for; one without a PID is a prepared transaction. $1 its PID
SELECT nullif(b.pid, 0), a.usename::text, a.application_name, a.state,
       extract(epoch FROM clock_timestamp() - a.xact_start)::bigint
FROM unnest(pg_blocking_pids($1)) AS b (pid) LEFT JOIN pg_stat_activity a ON a.pid = b.pid
