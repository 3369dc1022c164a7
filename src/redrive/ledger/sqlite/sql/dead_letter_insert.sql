INSERT INTO dead_letter (seq, generation, handler, tenant, scope, destination, cause, category, attempts, first_at,
                         last_at, ambiguous, policy_version, died_at)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14)
