SELECT 1 FROM transition WHERE seq = ?1 AND kind = ?2 AND fence = ?3 AND category IS ?4 LIMIT 1
