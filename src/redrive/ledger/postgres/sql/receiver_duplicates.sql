SELECT destination, sum(count)::bigint FROM {schema}.receiver_duplicate GROUP BY destination
