-- ?1 seqs
DELETE FROM repeat WHERE seq IN (SELECT value FROM json_each(?1))
