-- See extend_1.
SELECT lost, untouched FROM {schema}.extend_1($1::int, $2::text::bigint[], $3::text::bigint[], $4::bigint)
