-- Identities, and when retention took the delivery. ?1 after ?2 to
SELECT seq, delivery_id, payload_hash, purged_at FROM identity WHERE seq > ?1 AND seq <= ?2
