-- Attempts of one delivery that have ended. The order is AttemptView.from_row's. ?1 seq
SELECT a.number, a.generation, a.fence, w.name, a.started_at, a.ended_at, a.duration, a.outcome, a.category, a.status,
       a.retry_after, a.next_at, a.deferrals, a.flags, a.excerpt
FROM attempt a LEFT JOIN worker w ON w.worker = a.worker
WHERE a.seq = ?1
ORDER BY a.fence
