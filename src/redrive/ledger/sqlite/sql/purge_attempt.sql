-- ?1 seqs
DELETE FROM attempt WHERE seq IN (SELECT value FROM json_each(?1))
