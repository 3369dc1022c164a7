-- Any end of a lease, or of waiting. ?1 seq ?2 fence ?3 disposition ?4 attempt ?5 available_at ?6 lane ?7 hold
-- ?8 deferrals ?9 ambiguous ?10 last_category ?11 own_faults
UPDATE delivery_state
SET disposition = ?3, attempt = ?4, available_at = ?5, lane = coalesce(?6, lane), hold = ?7, deferrals = ?8,
    ambiguous = ?9, own_faults = ?11, last_category = ?10,
    leased_by = NULL, leased_until = NULL, started_at = NULL
WHERE seq = ?1 AND fence = ?2
