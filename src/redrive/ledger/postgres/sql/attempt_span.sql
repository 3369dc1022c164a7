SELECT count(*), min(started_at), max(ended_at) FROM {schema}.attempt
WHERE seq = $1::bigint AND generation = $2::integer
