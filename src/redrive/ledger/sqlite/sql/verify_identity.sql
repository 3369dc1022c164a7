-- ?1 after ?2 to
SELECT seq, delivery_id, payload_hash FROM identity WHERE seq > ?1 AND seq <= ?2
