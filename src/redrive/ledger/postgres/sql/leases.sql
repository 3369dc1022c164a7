-- Open leases: how many, the oldest one's start, and how many have run out. A lease lasts an hour at most, so waiting
-- work whose age ends later is not read. $1 now
SELECT count(*), min(started_at), coalesce(sum((leased_until <= $1::bigint)::integer), 0)
FROM {schema}.delivery_state
WHERE disposition <= 1 AND (CASE WHEN disposition = 1 THEN leased_until ELSE deadline_at END) <= $1::bigint + 3600000000
  AND disposition = 1
