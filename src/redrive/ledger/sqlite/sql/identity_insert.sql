-- A new identity, or no row when it is known. ?1 delivery_id ?2 payload_hash ?3 now
INSERT INTO identity (delivery_id, payload_hash, first_seen) VALUES (?1, ?2, ?3)
ON CONFLICT (delivery_id) DO NOTHING
RETURNING seq
