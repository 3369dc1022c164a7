-- The common end: success under the current, unexpired lease. ?1 disposition ?2 category ?3 seq ?4 fence ?5 now
UPDATE delivery_state
SET disposition = ?1, leased_by = NULL, leased_until = NULL, started_at = NULL, deferrals = 0, own_faults = 0, ambiguous = 0,
    last_category = ?2
WHERE seq = ?3 AND fence = ?4 AND disposition = 1 AND leased_until > ?5
