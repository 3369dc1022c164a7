-- The highest seq on the ledger, in whichever table, and the highest event_seq.
SELECT max(coalesce((SELECT max(seq) FROM identity), 0), coalesce((SELECT max(seq) FROM delivery), 0),
           coalesce((SELECT max(seq) FROM delivery_state), 0), coalesce((SELECT max(seq) FROM attempt), 0),
           coalesce((SELECT max(seq) FROM generation), 0), coalesce((SELECT max(seq) FROM dead_letter), 0),
           coalesce((SELECT max(seq) FROM transition), 0), coalesce((SELECT max(seq) FROM repeat), 0),
           coalesce((SELECT max(seq) FROM repeat_count), 0)),
       coalesce((SELECT max(event_seq) FROM event), 0)
