-- ?1 seqs
DELETE FROM transition WHERE seq IN (SELECT value FROM json_each(?1))
