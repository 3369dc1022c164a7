"""The embedded ledger: one SQLite file, one writer at a time, several processes."""
