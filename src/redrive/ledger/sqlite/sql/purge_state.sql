-- ?1 seqs
DELETE FROM delivery_state WHERE seq IN (SELECT value FROM json_each(?1))
