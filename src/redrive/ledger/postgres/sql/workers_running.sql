-- Processes of workers that never said that they stopped. $1 seen since
SELECT host, pid FROM {schema}.worker WHERE stopped_at IS NULL AND seen_at >= $1::bigint
