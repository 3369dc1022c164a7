INSERT INTO ledger (one, environment, created_at) VALUES (1, ?1, ?2)
