INSERT INTO {schema}.attempt (seq, fence, generation, number, worker, started_at, ended_at, duration, outcome, category,
                              status, retry_after, next_at, deferrals, flags, excerpt)
VALUES ($1::bigint, $2::bigint, $3::integer, $4::integer, $5::integer, $6::bigint, $7::bigint, $8::bigint, $9::text,
        $10::text, $11::integer, $12::bigint, $13::bigint, $14::integer, $15::integer, $16::text)
