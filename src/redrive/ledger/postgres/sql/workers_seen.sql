-- Workers that have not stopped and were seen lately, newest first. $1 since $2 limit
SELECT name, host, pid, version, routes, started_at, seen_at FROM {schema}.worker
WHERE stopped_at IS NULL AND seen_at >= $1::bigint
ORDER BY worker DESC LIMIT $2::bigint
