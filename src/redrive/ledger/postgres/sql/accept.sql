-- See accept_1.
SELECT ord, seq, decided
FROM {schema}.accept_1($1::text, $2::text, $3::text::int[], $4::text::int[], $5::text, $6::bytea, $7::bytea, $8::bytea,
                       $9::text::int[], $10::text, $11::text, $12::text, $13::int)
