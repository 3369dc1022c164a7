-- Tombstones from now on; identities are found by their deliveries, which are still there. $1 seqs $2 now
UPDATE {schema}.identity i SET purged_at = $2::bigint
FROM {schema}.delivery d
WHERE d.seq = ANY ($1::text::bigint[]) AND i.delivery_id = d.delivery_id AND i.seq = d.seq AND i.purged_at IS NULL
