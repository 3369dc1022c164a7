INSERT INTO {schema}.dead_letter (seq, generation, handler, tenant, scope, destination, cause, category, attempts,
                                  first_at, last_at, ambiguous, policy_version, died_at)
VALUES ($1::bigint, $2::integer, $3::text, $4::text, $5::text, $6::text, $7::text, $8::text, $9::integer, $10::bigint,
        $11::bigint, $12::smallint, $13::bigint, $14::bigint)
