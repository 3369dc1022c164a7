-- Identities in the order of their ID: each one's seq, when retention took its delivery, and the delivery ID of the
-- delivery with that seq. $1 after $2 limit
SELECT i.delivery_id, i.seq, i.purged_at, (SELECT d.delivery_id FROM {schema}.delivery d WHERE d.seq = i.seq)
FROM {schema}.identity i WHERE i.delivery_id > $1::bytea
ORDER BY i.delivery_id LIMIT $2::bigint
