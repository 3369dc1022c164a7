-- Charge and lease, in one statement. By key: statistics taken while little was due make the ready index look cheaper.
-- ?1 seqs (JSON array) ?2 now ?3 worker ?4 leased_until
UPDATE delivery_state NOT INDEXED
SET disposition = 1, attempt = attempt + 1, fence = fence + 1, leased_by = ?3, leased_until = ?4, started_at = ?2
WHERE seq IN (SELECT value FROM json_each(?1))
  AND disposition = 0 AND hold = 0 AND attempt < max_attempts AND available_at <= ?2 AND deadline_at > ?2
