INSERT INTO {schema}.destination (destination_id, tenant, name, scope, url, enabled, settings, disabled_at,
                                  disabled_why, created_at, updated_at)
VALUES ($1::text, $2::text, $3::text, $4::text, $5::text, $6::smallint, $7::text, $8::bigint, $9::text, $10::bigint,
        $11::bigint)
ON CONFLICT (tenant, name) DO NOTHING
