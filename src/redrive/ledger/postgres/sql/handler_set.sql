-- What SQL alone needs to enqueue for a handler. $1 handler $2 envelope_version $3 policy_version $4 max_attempts
-- $5 max_age $6 now
INSERT INTO {schema}.handler (handler, envelope_version, policy_version, max_attempts, max_age, updated_at)
VALUES ($1::text, $2::int, $3::bigint, $4::int, $5::bigint, $6::bigint)
ON CONFLICT (handler) DO UPDATE
SET envelope_version = excluded.envelope_version, policy_version = excluded.policy_version,
    max_attempts = excluded.max_attempts, max_age = excluded.max_age, updated_at = excluded.updated_at
