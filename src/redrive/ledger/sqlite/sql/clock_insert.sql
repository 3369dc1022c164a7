INSERT INTO clock (one, now) VALUES (1, ?1)
