-- What generation 0 was granted. $1 seq
SELECT max_attempts, deadline_at, first_hold FROM {schema}.delivery WHERE seq = $1::bigint
