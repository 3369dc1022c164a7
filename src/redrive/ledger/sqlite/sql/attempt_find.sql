SELECT outcome FROM attempt WHERE seq = ?1 AND fence = ?2
