-- The order is fold.State's. $1 after $2 to
SELECT seq, route, flow, lane, disposition, hold, generation, attempt, max_attempts, deadline_at, available_at, fence,
       leased_by, leased_until, started_at, deferrals, own_faults, ambiguous, cancel_requested, last_category
FROM {schema}.delivery_state WHERE seq > $1::bigint AND seq <= $2::bigint
