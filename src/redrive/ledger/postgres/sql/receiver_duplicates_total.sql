SELECT coalesce(sum(count), 0)::bigint FROM {schema}.receiver_duplicate
