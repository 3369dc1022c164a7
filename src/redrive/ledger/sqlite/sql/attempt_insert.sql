INSERT INTO attempt (seq, fence, generation, number, worker, started_at, ended_at, duration, outcome, category,
                     status, retry_after, next_at, deferrals, flags, excerpt)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16)
