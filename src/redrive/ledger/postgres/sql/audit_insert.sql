-- Numbered without a gap: audit_lock has run before, in a statement of its own, so that this one sees the row before.
INSERT INTO {schema}.audit (audit, at, actor, action, target, reason, before, after, digest)
SELECT coalesce(max(audit), 0) + 1, $1::bigint, $2::text, $3::text, $4::text, $5::text, $6::text, $7::text, $8::bytea
FROM {schema}.audit
