-- Tombstones from now on. ?1 seqs ?2 now
UPDATE identity SET purged_at = ?2 WHERE seq IN (SELECT value FROM json_each(?1)) AND purged_at IS NULL
