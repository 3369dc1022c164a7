SELECT event_seq, event_type, payload_hash FROM event WHERE event_id = ?1
