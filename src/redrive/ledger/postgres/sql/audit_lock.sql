-- The chain has one writer at a time, until the transaction ends. A statement of its own: the next one takes its
-- snapshot after the lock.
SELECT pg_advisory_xact_lock(hashtextextended('redrive audit of {schema}', 0))
