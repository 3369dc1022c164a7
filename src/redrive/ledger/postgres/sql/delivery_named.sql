SELECT delivery_id FROM {schema}.delivery WHERE seq = $1::bigint
