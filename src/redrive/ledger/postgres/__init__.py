"""The PostgreSQL ledger: one schema, many workers on many hosts."""
