SELECT spec FROM {schema}.policy WHERE version = $1::bigint
