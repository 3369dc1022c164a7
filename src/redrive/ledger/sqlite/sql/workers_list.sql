-- Workers that have not stopped, newest first, with the leases that each holds. ?1 seen since ?2 limit
WITH held (worker, leases) AS MATERIALIZED (
  SELECT leased_by, count(*) FROM delivery_state INDEXED BY delivery_state_leased
  WHERE disposition = 1 GROUP BY leased_by
)
SELECT w.name, w.host, w.pid, w.version, w.routes, w.started_at, w.seen_at,
       coalesce((SELECT h.leases FROM held h WHERE h.worker = w.worker), 0)
FROM worker w
WHERE w.stopped_at IS NULL AND w.seen_at >= ?1
ORDER BY w.worker DESC LIMIT ?2
