-- Any end of a lease, or of waiting. $1 seq $2 fence $3 disposition $4 attempt $5 available_at $6 lane $7 hold
-- $8 deferrals $9 ambiguous $10 last_category $11 own_faults
UPDATE {schema}.delivery_state
SET disposition = $3::smallint, attempt = $4::integer, available_at = $5::bigint, lane = coalesce($6::smallint, lane),
    hold = $7::smallint, deferrals = $8::integer, ambiguous = $9::smallint, own_faults = $11::integer,
    last_category = $10::text, leased_by = NULL, leased_until = NULL, started_at = NULL
WHERE seq = $1::bigint AND fence = $2::bigint
