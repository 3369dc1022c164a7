-- ?1 seqs
DELETE FROM delivery WHERE seq IN (SELECT value FROM json_each(?1))
