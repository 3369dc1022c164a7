-- Whether a transaction whose commit was not answered took effect. $1 its ID
SELECT pg_xact_status($1::text::xid8)
