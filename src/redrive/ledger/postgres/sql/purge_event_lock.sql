-- Two runs that take the last two deliveries of an event would each believe that one is left. $1 event_seqs
SELECT event_seq FROM {schema}.event WHERE event_seq = ANY ($1::text::bigint[]) ORDER BY event_seq FOR UPDATE
