-- The payload goes with the last delivery. ?1 event_seqs ?2 now
UPDATE event SET payload = x'', purged_at = ?2
WHERE event_seq IN (SELECT value FROM json_each(?1)) AND purged_at IS NULL
  AND NOT EXISTS (SELECT 1 FROM delivery d WHERE d.event_seq = event.event_seq)
