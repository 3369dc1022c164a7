-- $1 from $2 to
UPDATE {schema}.retention SET event_after = $2::bigint WHERE event_after = $1::bigint
