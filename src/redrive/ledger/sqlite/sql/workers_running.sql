-- Workers that never said that they stopped. ?1 seen since
SELECT name, host, pid FROM worker WHERE stopped_at IS NULL AND seen_at >= ?1 ORDER BY worker
