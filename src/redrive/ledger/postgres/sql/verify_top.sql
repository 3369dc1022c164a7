-- The highest seq on the ledger, in whichever table that has an index on it, and the highest event_seq.
SELECT greatest(coalesce((SELECT max(seq) FROM {schema}.delivery), 0),
                coalesce((SELECT max(seq) FROM {schema}.delivery_state), 0),
                coalesce((SELECT max(seq) FROM {schema}.attempt), 0),
                coalesce((SELECT max(seq) FROM {schema}.generation), 0),
                coalesce((SELECT max(seq) FROM {schema}.dead_letter), 0),
                coalesce((SELECT max(seq) FROM {schema}.transition), 0),
                coalesce((SELECT max(seq) FROM {schema}.repeat), 0),
                coalesce((SELECT max(seq) FROM {schema}.repeat_count), 0)),
       coalesce((SELECT max(event_seq) FROM {schema}.event), 0)
