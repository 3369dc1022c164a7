-- Workers that have not stopped and were seen lately. $1 since
SELECT host, pid, version FROM {schema}.worker WHERE stopped_at IS NULL AND seen_at >= $1 ORDER BY host, pid
