-- In this session's own row: no other transaction waits for it. $1 code $2 how many
INSERT INTO {schema}.rejection (code, session, count) VALUES ($1::text, pg_backend_pid(), $2::bigint)
ON CONFLICT (code, session) DO UPDATE SET count = rejection.count + excluded.count
