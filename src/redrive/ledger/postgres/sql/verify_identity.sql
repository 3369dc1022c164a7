-- The identities of a range of deliveries, and when retention took the delivery. They have no index on seq: those that
-- belong to no delivery are found by verify_orphans. $1 after $2 to
SELECT i.seq, i.delivery_id, i.payload_hash, i.purged_at
FROM {schema}.delivery d
CROSS JOIN LATERAL (SELECT i.seq, i.delivery_id, i.payload_hash, i.purged_at FROM {schema}.identity i
                    WHERE i.delivery_id = d.delivery_id OFFSET 0) AS i
WHERE d.seq > $1::bigint AND d.seq <= $2::bigint AND i.seq = d.seq
