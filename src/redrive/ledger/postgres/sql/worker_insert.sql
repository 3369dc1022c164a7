INSERT INTO {schema}.worker (name, host, pid, version, routes, started_at, seen_at)
VALUES ($1::text, $2::text, $3::integer, $4::text, $5::text, $6::bigint, $6::bigint)
RETURNING worker
