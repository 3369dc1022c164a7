-- Attempts of one delivery that have ended. The order is AttemptView.from_row's. $1 seq
SELECT a.number, a.generation, a.fence, (SELECT w.name FROM {schema}.worker w WHERE w.worker = a.worker),
       a.started_at, a.ended_at, a.duration, a.outcome, a.category, a.status, a.retry_after, a.next_at, a.deferrals,
       a.flags, a.excerpt
FROM {schema}.attempt a
WHERE a.seq = $1::bigint
ORDER BY a.fence
