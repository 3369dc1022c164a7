-- $1 deliveries taken $2 purged_at of a forgotten tombstone, or 0
UPDATE {schema}.retention SET purged = purged + $1::bigint, forgotten_at = greatest(forgotten_at, $2::bigint)
