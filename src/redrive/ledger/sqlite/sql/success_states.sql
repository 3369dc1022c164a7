-- ?1 the same JSON object ?2 disposition ?3 category
UPDATE delivery_state
SET disposition = ?2, leased_by = NULL, leased_until = NULL, started_at = NULL, deferrals = 0, own_faults = 0,
    ambiguous = 0, last_category = ?3
WHERE seq IN (SELECT CAST(key AS INTEGER) FROM json_each(?1))
