SELECT filter FROM {schema}.subscription WHERE destination_id = $1::text ORDER BY filter COLLATE "C"
