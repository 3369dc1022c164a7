INSERT INTO worker (name, host, pid, version, routes, started_at, seen_at) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?6)
RETURNING worker
