-- What a caller's own transaction must belong to, and ledger time.
SELECT environment, {schema}.clock_us(), created_at FROM {schema}.ledger
