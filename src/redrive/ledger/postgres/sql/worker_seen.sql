UPDATE {schema}.worker SET seen_at = $2::bigint WHERE worker = $1::integer
