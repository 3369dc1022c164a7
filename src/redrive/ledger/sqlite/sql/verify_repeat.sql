-- ?1 after ?2 to
SELECT seq, number, at, decided FROM repeat WHERE seq > ?1 AND seq <= ?2 ORDER BY seq, number
