SELECT seq, payload_hash FROM identity WHERE delivery_id = ?1
