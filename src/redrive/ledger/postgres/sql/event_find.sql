SELECT event_seq, event_type, payload_hash FROM {schema}.event WHERE event_id = $1::bytea
