-- Workers that have not stopped, newest first, with the leases that each holds. A lease lasts an hour at most, so waiting
-- work whose age ends later is not read. $1 seen since $2 limit
WITH held (worker, leases) AS MATERIALIZED (
  SELECT leased_by, count(*) FROM {schema}.delivery_state
  WHERE disposition <= 1 AND (CASE WHEN disposition = 1 THEN leased_until ELSE deadline_at END)
                             <= (SELECT {schema}.clock_us()) + 3600000000
    AND disposition = 1
  GROUP BY leased_by
)
SELECT w.name, w.host, w.pid, w.version, w.routes, w.started_at, w.seen_at,
       coalesce((SELECT h.leases FROM held h WHERE h.worker = w.worker), 0)
FROM {schema}.worker w
WHERE w.stopped_at IS NULL AND w.seen_at >= $1::bigint
ORDER BY w.worker DESC LIMIT $2::bigint
