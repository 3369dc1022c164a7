-- $1 after $2 to
SELECT seq, sum(duplicates)::bigint, sum(conflicts)::bigint FROM {schema}.repeat_count
WHERE seq > $1::bigint AND seq <= $2::bigint
GROUP BY seq
ORDER BY seq
