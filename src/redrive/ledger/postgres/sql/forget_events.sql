-- Events past their time, once no tombstone of a delivery is: else the event could be published anew, and its
-- deliveries not be made. $1 purged by then $2 limit
WITH past AS MATERIALIZED (
  SELECT e.event_seq FROM {schema}.event e
  WHERE e.purged_at <= $1::bigint
    AND NOT EXISTS (SELECT 1 FROM {schema}.identity i WHERE i.purged_at <= $1::bigint)
  ORDER BY e.purged_at LIMIT $2::bigint
  FOR UPDATE OF e SKIP LOCKED
)
DELETE FROM {schema}.event e USING past p WHERE e.event_seq = p.event_seq
RETURNING e.event_seq
