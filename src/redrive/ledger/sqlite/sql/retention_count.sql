-- ?1 deliveries taken ?2 purged_at of a forgotten tombstone, or 0
UPDATE retention SET purged = purged + ?1, forgotten_at = max(forgotten_at, ?2)
