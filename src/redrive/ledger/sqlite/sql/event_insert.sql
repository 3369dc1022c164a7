-- ?1 event_seq ?2 event_id ?3 event_key ?4 event_type ?5 tenant ?6 scope ?7 content_type ?8 payload ?9 payload_hash
-- ?10 envelope_version ?11 occurred_at ?12 now ?13 fan_out
INSERT INTO event (event_seq, event_id, event_key, event_type, tenant, scope, content_type, payload, payload_hash,
                   envelope_version, occurred_at, accepted_at, fan_out)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13)
ON CONFLICT (event_id) DO NOTHING
