UPDATE worker SET seen_at = ?2 WHERE worker = ?1
