-- Enqueues that found the delivery there, as far as they are listed. $1 seq
SELECT row_number() OVER (ORDER BY repeat), at, decided, path, producer FROM {schema}.repeat WHERE seq = $1::bigint
ORDER BY repeat
