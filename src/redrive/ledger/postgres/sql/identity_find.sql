SELECT seq, payload_hash FROM {schema}.identity WHERE delivery_id = $1::bytea
