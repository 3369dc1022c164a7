-- $1 seq
SELECT transition, at, kind, generation, fence, category, actor, reason FROM {schema}.transition
WHERE seq = $1::bigint
ORDER BY transition
