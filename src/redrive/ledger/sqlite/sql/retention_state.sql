-- How far retention has come, and when the oldest delivery that is left was accepted.
SELECT r.ran_at, r.event_after, r.purged, r.forgotten_at,
       coalesce((SELECT max(last_seq) FROM retention_span), 0),
       (SELECT i.first_seen FROM identity i WHERE i.seq = (SELECT min(seq) FROM delivery_state))
FROM retention r
