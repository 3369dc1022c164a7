SELECT seq, fence, generation, number, started_at, ended_at, outcome, category, status, retry_after, next_at, flags
FROM {schema}.attempt ORDER BY seq, generation, number, fence
