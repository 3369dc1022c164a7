INSERT INTO {schema}.policy (version, spec) VALUES ($1::bigint, $2::text) ON CONFLICT (version) DO NOTHING
