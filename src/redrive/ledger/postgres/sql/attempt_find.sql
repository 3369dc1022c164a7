SELECT outcome FROM {schema}.attempt WHERE seq = $1::bigint AND fence = $2::bigint
