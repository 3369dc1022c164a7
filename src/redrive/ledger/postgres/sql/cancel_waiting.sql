-- disposition + 0: by key, never through a partial index that statistics make look cheaper.
UPDATE {schema}.delivery_state SET disposition = 5, hold = 0 WHERE seq = $1::bigint AND disposition + 0 = 0
