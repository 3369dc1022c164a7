-- Tombstones that are past their time; when each was made. The highest seq stays: the next one is dealt from it.
-- ?1 purged by then ?2 limit
DELETE FROM identity
WHERE seq IN (SELECT seq FROM identity WHERE purged_at <= ?1 AND seq < (SELECT max(seq) FROM identity)
              ORDER BY purged_at LIMIT ?2)
RETURNING purged_at
