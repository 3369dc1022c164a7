-- See reserve_1. The order is Lease's, and available_at after it.
SELECT seq, delivery_id, handler, tenant, scope, destination, generation, attempt, max_attempts, deadline_at, fence,
       started_at, leased_until, deferrals, ambiguous, envelope_version, content_type, payload, payload_hash,
       policy_version, event_id, event_type, occurred_at, available_at
FROM {schema}.reserve_1($1::int, $2::text::bigint[], $3::text::bigint[], $4::int, $5::bigint, $6::bigint, $7::boolean)
