-- Ledger time for this transaction: never below what was stored before. ?1 the process's estimate
UPDATE clock SET now = max(now, ?1) RETURNING now
