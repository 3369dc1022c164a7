-- ?1 event_id ?2 event_key ?3 event_type ?4 tenant ?5 scope ?6 content_type ?7 payload ?8 payload_hash
-- ?9 envelope_version ?10 occurred_at ?11 now ?12 fan_out
INSERT INTO event (event_id, event_key, event_type, tenant, scope, content_type, payload, payload_hash,
                   envelope_version, occurred_at, accepted_at, fan_out)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12)
ON CONFLICT (event_id) DO NOTHING
RETURNING event_seq
