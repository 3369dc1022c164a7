DELETE FROM {schema}.subscription WHERE destination_id = $1::text
