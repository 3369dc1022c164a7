-- How far retention has come, and when the oldest delivery that is left was accepted.
SELECT r.ran_at, r.event_after, r.purged, r.forgotten_at,
       coalesce((SELECT max(last_seq) FROM {schema}.retention_span), 0),
       (SELECT d.first_queued_at FROM {schema}.delivery d ORDER BY d.seq LIMIT 1)
FROM {schema}.retention r
