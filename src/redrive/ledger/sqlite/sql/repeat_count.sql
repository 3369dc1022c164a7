-- One more enqueue that found the delivery there; the total so far. ?1 seq ?2 duplicates ?3 conflicts
INSERT INTO repeat_count (seq, duplicates, conflicts) VALUES (?1, ?2, ?3)
ON CONFLICT (seq) DO UPDATE SET duplicates = duplicates + ?2, conflicts = conflicts + ?3
RETURNING duplicates + conflicts
