-- A worker's turn, unless another one had it. $1 now $2 last run by then
UPDATE {schema}.retention SET ran_at = $1::bigint WHERE ran_at <= $2::bigint
