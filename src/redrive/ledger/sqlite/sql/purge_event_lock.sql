-- The writer is alone: nothing to lock. ?1 event_seqs
SELECT value FROM json_each(?1)
