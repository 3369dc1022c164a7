-- Hold or release a chunk of a destination's waiting deliveries, locked in seq order; whoever holds a lock is waited
-- for. Deliveries lead, whatever the statistics say: the row comparison rules out a walk along delivery's key, and a
-- locking subquery is never turned into a join.
-- $1 destination $2 limit $3 hold $4 from hold $5 after seq
UPDATE {schema}.delivery_state SET hold = $3::smallint
WHERE seq = ANY (ARRAY (
  SELECT s.seq
  FROM (
    SELECT d.seq FROM {schema}.delivery d
    WHERE (d.destination, d.seq) > ($1::text, $5::bigint) AND d.destination <= $1::text AND d.handler = 'webhook'
    ORDER BY d.destination, d.seq OFFSET 0
  ) AS d CROSS JOIN LATERAL (
    SELECT s.seq FROM {schema}.delivery_state s
    WHERE s.seq = d.seq AND s.disposition + 0 = 0 AND s.hold + 0 = $4::smallint
    FOR UPDATE
  ) AS s
  LIMIT $2::bigint
))
RETURNING seq, generation, fence
