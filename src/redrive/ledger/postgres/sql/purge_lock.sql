-- Of these deliveries those that have ended and have no open dead letter, locked in order; one that somebody is at is
-- passed over: seq, disposition, event. disposition + 0: else the planner may prefer a partial index to the key.
-- $1 seqs
SELECT s.seq, s.disposition, d.event_seq
FROM {schema}.delivery_state s JOIN {schema}.delivery d ON d.seq = s.seq
WHERE s.seq = ANY ($1::text::bigint[]) AND s.disposition + 0 > 1
  AND NOT EXISTS (SELECT 1 FROM {schema}.dead_letter l WHERE l.seq = s.seq AND l.state = 'open')
ORDER BY s.seq
FOR UPDATE OF s, d SKIP LOCKED
