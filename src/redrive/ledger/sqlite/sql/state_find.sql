-- One delivery as it stands. ?1 seq
SELECT s.disposition, s.generation, s.attempt, s.max_attempts, s.deadline_at, s.fence, s.leased_by, s.leased_until,
       s.started_at, s.deferrals, s.own_faults, s.ambiguous, s.cancel_requested, s.hold, s.last_category, s.available_at,
       d.handler, d.tenant, d.scope, d.destination,
       coalesce((SELECT g.policy_version FROM generation g WHERE g.seq = s.seq AND g.generation = s.generation),
                d.policy_version)
FROM delivery_state s JOIN delivery d ON d.seq = s.seq
WHERE s.seq = ?1
