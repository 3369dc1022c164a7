SELECT seq, fence, generation, number, started_at, ended_at, outcome, category, status, retry_after, next_at, flags
FROM attempt ORDER BY seq, generation, number, fence
