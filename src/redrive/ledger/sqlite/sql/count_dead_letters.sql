-- Open dead letters, dead letters of any state, and generations that left one behind, up to a cap. ?1 cap
SELECT (SELECT count(*) FROM (SELECT 1 FROM dead_letter INDEXED BY dead_letter_open WHERE state = 'open' LIMIT ?1)),
       (SELECT count(*) FROM (SELECT 1 FROM dead_letter LIMIT ?1)),
       (SELECT count(*) FROM (SELECT 1 FROM generation LIMIT ?1))
