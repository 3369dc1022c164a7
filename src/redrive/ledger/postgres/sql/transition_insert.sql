INSERT INTO {schema}.transition (seq, at, kind, generation, fence, category, actor, reason)
VALUES ($1::bigint, $2::bigint, $3::text, $4::integer, $5::bigint, $6::text, $7::text, $8::text)
