-- disposition + 0: by key, never through a partial index that statistics make look cheaper.
UPDATE {schema}.delivery_state SET cancel_requested = 1
WHERE seq = $1::bigint AND disposition + 0 = 1 AND cancel_requested = 0
