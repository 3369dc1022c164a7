-- Locked: what is decided by it is written in the same transaction.
SELECT disposition, generation, fence FROM {schema}.delivery_state WHERE seq = $1::bigint FOR UPDATE
