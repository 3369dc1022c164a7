-- A new identity; changes nothing when it is known. ?1 seq ?2 delivery_id ?3 payload_hash ?4 now
INSERT INTO identity (seq, delivery_id, payload_hash, first_seen) VALUES (?1, ?2, ?3, ?4)
ON CONFLICT (delivery_id) DO NOTHING
