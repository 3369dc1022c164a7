-- The order is fold.Attempt's. $1 after $2 to
SELECT seq, fence, generation, number, started_at, ended_at, outcome, category, next_at, deferrals, flags
FROM {schema}.attempt WHERE seq > $1::bigint AND seq <= $2::bigint
ORDER BY seq, fence
