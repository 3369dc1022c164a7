-- ?1 after ?2 to
SELECT seq, duplicates, conflicts FROM repeat_count WHERE seq > ?1 AND seq <= ?2
