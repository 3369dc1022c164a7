-- What a destination's settings grant: the fan-out is decided in SQL.
-- $1 destination_id $2 policy_version $3 max_attempts $4 max_age
UPDATE {schema}.destination SET policy_version = $2::bigint, max_attempts = $3::integer, max_age = $4::bigint
WHERE destination_id = $1::text
