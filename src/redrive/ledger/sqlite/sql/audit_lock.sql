-- The transaction has the ledger's one writer to itself already: nothing is left to lock.
SELECT 1
