INSERT INTO audit (at, actor, action, target, reason, before, after, digest) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)
