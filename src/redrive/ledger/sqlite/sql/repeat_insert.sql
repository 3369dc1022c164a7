INSERT INTO repeat (seq, number, at, decided, path, producer) VALUES (?1, ?2, ?3, ?4, ?5, ?6)
