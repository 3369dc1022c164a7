-- The attempt rows of successes under their current, unexpired leases; must run before success_states.
-- ?1 JSON object {seq: fence * 2^40 + duration} ?2 now ?3 outcome ?4 category ?5 status ?6 flags
INSERT INTO attempt (seq, fence, generation, number, worker, started_at, ended_at, duration, outcome, category, status,
                     deferrals, flags)
SELECT s.seq, s.fence, s.generation, s.attempt, s.leased_by, s.started_at, max(?2, s.started_at),
       j.value & 1099511627775, ?3, ?4, ?5, s.deferrals, ?6
FROM json_each(?1) j CROSS JOIN delivery_state s ON s.seq = CAST(j.key AS INTEGER)
WHERE s.fence = j.value >> 40 AND s.disposition = 1 AND s.leased_until > ?2
