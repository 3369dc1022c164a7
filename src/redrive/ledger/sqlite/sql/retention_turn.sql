-- A worker's turn, unless another one had it. ?1 now ?2 last run by then
UPDATE retention SET ran_at = ?1 WHERE ran_at <= ?2
