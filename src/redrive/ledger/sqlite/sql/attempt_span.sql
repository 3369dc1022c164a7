SELECT count(*), min(started_at), max(ended_at) FROM attempt WHERE seq = ?1 AND generation = ?2
