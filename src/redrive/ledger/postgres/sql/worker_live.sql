SELECT routes FROM {schema}.worker WHERE stopped_at IS NULL AND seen_at >= $1::bigint
