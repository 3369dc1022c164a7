-- ... and all of them, counted. $1 seq
SELECT sum(duplicates)::bigint, sum(conflicts)::bigint FROM {schema}.repeat_count WHERE seq = $1::bigint GROUP BY seq
