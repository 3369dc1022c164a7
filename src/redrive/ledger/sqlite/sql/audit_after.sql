-- The audit chain, in order. ?1 after ?2 limit
SELECT audit, at, actor, action, target, reason, before, after, digest FROM audit WHERE audit > ?1 ORDER BY audit LIMIT ?2
