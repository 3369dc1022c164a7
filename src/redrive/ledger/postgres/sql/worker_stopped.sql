UPDATE {schema}.worker SET stopped_at = $2::bigint, seen_at = $2::bigint WHERE worker = $1::integer
