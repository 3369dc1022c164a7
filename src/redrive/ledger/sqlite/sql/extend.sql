-- Extend one lease, if it is still held. ?1 seq ?2 fence ?3 worker ?4 leased_until
UPDATE delivery_state SET leased_until = max(leased_until, ?4)
WHERE seq = ?1 AND fence = ?2 AND disposition = 1 AND leased_by = ?3
RETURNING seq
