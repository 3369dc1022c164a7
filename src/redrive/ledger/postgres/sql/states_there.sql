-- Which of these deliveries are on the ledger, held by somebody or not. $1 seqs
SELECT s.seq FROM {schema}.delivery_state s WHERE s.seq = ANY ($1::text::bigint[])
