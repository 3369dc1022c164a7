UPDATE worker SET stopped_at = ?2, seen_at = ?2 WHERE worker = ?1
