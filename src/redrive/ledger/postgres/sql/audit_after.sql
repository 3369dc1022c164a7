-- The audit chain, in order. $1 after $2 limit
SELECT audit, at, actor, action, target, reason, before, after, digest FROM {schema}.audit
WHERE audit > $1::bigint
ORDER BY audit LIMIT $2::bigint
