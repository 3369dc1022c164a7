-- ?1 seq
SELECT transition, at, kind, generation, fence, category, actor, reason FROM transition WHERE seq = ?1
ORDER BY transition
