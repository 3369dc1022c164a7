SELECT sum(count)::bigint FROM {schema}.receiver_duplicate WHERE destination = $1::text GROUP BY destination
