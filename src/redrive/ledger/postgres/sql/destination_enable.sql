UPDATE {schema}.destination SET enabled = $2::smallint, disabled_at = $3::bigint, disabled_why = $4::text,
                                updated_at = $5::bigint
WHERE destination_id = $1::text
