-- ?1 seqs
DELETE FROM repeat_count WHERE seq IN (SELECT value FROM json_each(?1))
