INSERT INTO delivery (seq, delivery_id, handler, tenant, scope, destination, key, event_seq, payload, content_type,
                      envelope_version, policy_version, max_attempts, deadline_at, first_queued_at, first_due_at,
                      first_hold)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17)
