-- Enqueues that found the delivery there, as far as they are listed. ?1 seq
SELECT number, at, decided, path, producer FROM repeat WHERE seq = ?1 ORDER BY number
