INSERT INTO destination (destination_id, tenant, name, scope, url, enabled, settings, disabled_at, disabled_why,
                         created_at, updated_at)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)
ON CONFLICT (tenant, name) DO NOTHING
