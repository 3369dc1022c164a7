-- The order is fold.Transition's. $1 after $2 to
SELECT seq, transition, at, kind, generation, fence, category FROM {schema}.transition
WHERE seq > $1::bigint AND seq <= $2::bigint
ORDER BY seq, transition
