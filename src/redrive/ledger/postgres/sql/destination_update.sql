UPDATE {schema}.destination SET scope = $2::text, url = $3::text, settings = $4::text, updated_at = $5::bigint
WHERE destination_id = $1::text
