-- state_find for many, locked in order, each after its seq; without those that somebody else holds. $1 seqs
SELECT s.seq, s.disposition, s.generation, s.attempt, s.max_attempts, s.deadline_at, s.fence, s.leased_by,
       s.leased_until, s.started_at, s.deferrals, s.own_faults, s.ambiguous, s.cancel_requested, s.hold,
       s.last_category, s.available_at, d.handler, d.tenant, d.scope, d.destination,
       coalesce((SELECT g.policy_version FROM {schema}.generation g
                 WHERE g.seq = s.seq AND g.generation = s.generation), d.policy_version)
FROM {schema}.delivery_state s JOIN {schema}.delivery d ON d.seq = s.seq
WHERE s.seq = ANY ($1::text::bigint[])
ORDER BY s.seq
FOR UPDATE OF s SKIP LOCKED
