-- Nothing is left of it. ?1 after ?2 to
DELETE FROM retention_span WHERE after_seq = ?1 AND last_seq = ?2
