-- The payload goes with the last delivery. $1 event_seqs $2 now
UPDATE {schema}.event e SET payload = '', purged_at = $2::bigint
WHERE e.event_seq = ANY ($1::text::bigint[]) AND e.purged_at IS NULL
  AND NOT EXISTS (SELECT 1 FROM {schema}.delivery d WHERE d.event_seq = e.event_seq)
