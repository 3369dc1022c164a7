-- $1 after $2 to
SELECT seq, row_number() OVER (PARTITION BY seq ORDER BY repeat), at, decided FROM {schema}.repeat
WHERE seq > $1::bigint AND seq <= $2::bigint
ORDER BY seq, repeat
