-- ?1 seqs
DELETE FROM generation WHERE seq IN (SELECT value FROM json_each(?1))
