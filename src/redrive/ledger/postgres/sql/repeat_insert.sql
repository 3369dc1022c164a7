-- Rows are numbered when they are read: producers do not wait for one another to deal out numbers. $1 seq $2 number
-- $3 at $4 decided $5 path $6 producer
INSERT INTO {schema}.repeat (seq, at, decided, path, producer)
SELECT $1::bigint, $3::bigint, $4::text, $5::text, $6::text WHERE $2::bigint >= 1
