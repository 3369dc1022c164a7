-- One migration of a ledger at a time. $1 the schema
SELECT pg_advisory_xact_lock(hashtextextended('redrive.migrate.' || $1::text, 0))
