-- See close_1.
SELECT {schema}.close_1($1::int, $2::text::bigint[], $3::text::bigint[], $4::text::int[], $5::text::int[],
                        $6::text::bigint[], $7::text::int[], $8::text::bigint[], $9::text, $10::text, $11::int,
                        $12::int, $13::int)
