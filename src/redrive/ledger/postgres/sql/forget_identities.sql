-- Tombstones that are past their time; when each was made. $1 purged by then $2 limit
WITH past AS MATERIALIZED (
  SELECT i.delivery_id FROM {schema}.identity i WHERE i.purged_at <= $1::bigint
  ORDER BY i.purged_at LIMIT $2::bigint
  FOR UPDATE SKIP LOCKED
)
DELETE FROM {schema}.identity i USING past p WHERE i.delivery_id = p.delivery_id
RETURNING i.purged_at
