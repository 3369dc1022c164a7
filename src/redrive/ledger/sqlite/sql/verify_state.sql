-- The order is fold.State's. ?1 after ?2 to
SELECT seq, route, flow, lane, disposition, hold, generation, attempt, max_attempts, deadline_at, available_at, fence,
       leased_by, leased_until, started_at, deferrals, own_faults, ambiguous, cancel_requested, last_category
FROM delivery_state WHERE seq > ?1 AND seq <= ?2
