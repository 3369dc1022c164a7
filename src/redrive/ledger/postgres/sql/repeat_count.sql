-- One more enqueue that found the delivery there, in this session's own row: no other transaction waits for it. The
-- total so far, as far as others' counts are committed. $1 seq $2 duplicates $3 conflicts
WITH mine AS (
  INSERT INTO {schema}.repeat_count (seq, session, duplicates, conflicts)
  VALUES ($1::bigint, pg_backend_pid(), $2::bigint, $3::bigint)
  ON CONFLICT (seq, session) DO UPDATE SET duplicates = repeat_count.duplicates + excluded.duplicates,
                                           conflicts = repeat_count.conflicts + excluded.conflicts
  RETURNING duplicates + conflicts AS total
)
SELECT mine.total + coalesce((SELECT sum(o.duplicates + o.conflicts) FROM {schema}.repeat_count o
                              WHERE o.seq = $1::bigint AND o.session <> pg_backend_pid()), 0)::bigint
FROM mine
