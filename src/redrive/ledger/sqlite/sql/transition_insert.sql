INSERT INTO transition (seq, at, kind, generation, fence, category, actor, reason)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)
