-- ?1 seqs
DELETE FROM dead_letter WHERE seq IN (SELECT value FROM json_each(?1))
