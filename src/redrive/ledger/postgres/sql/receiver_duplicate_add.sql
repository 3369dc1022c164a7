-- Count attempts that the receiver called duplicates, by destination, in this session's own rows: no other
-- transaction waits for them. $1 JSON object whose keys are seqs
INSERT INTO {schema}.receiver_duplicate (destination, session, count)
SELECT d.destination, pg_backend_pid(), count(*)
FROM json_object_keys($1::text::json) AS j (key)
CROSS JOIN LATERAL (SELECT d.destination FROM {schema}.delivery d WHERE d.seq = j.key::bigint OFFSET 0) AS d
GROUP BY d.destination
ORDER BY d.destination
ON CONFLICT (destination, session) DO UPDATE SET count = receiver_duplicate.count + excluded.count
