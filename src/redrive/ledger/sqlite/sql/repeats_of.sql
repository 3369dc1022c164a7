-- ... and all of them, counted. ?1 seq
SELECT duplicates, conflicts FROM repeat_count WHERE seq = ?1
