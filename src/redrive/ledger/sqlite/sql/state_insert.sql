INSERT INTO delivery_state (seq, route, flow, lane, priority, disposition, hold, generation, attempt, max_attempts,
                            deadline_at, available_at, fence)
VALUES (?1, ?2, ?3, 0, ?4, 0, ?5, 0, 0, ?6, ?7, ?8, 0)
