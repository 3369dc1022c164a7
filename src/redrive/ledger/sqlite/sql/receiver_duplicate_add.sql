-- Count attempts that the receiver called duplicates, by destination. ?1 JSON object whose keys are seqs
INSERT INTO receiver_duplicate (destination, count)
SELECT d.destination, 1 FROM json_each(?1) j CROSS JOIN delivery d ON d.seq = CAST(j.key AS INTEGER)
WHERE true
ON CONFLICT (destination) DO UPDATE SET count = count + 1
