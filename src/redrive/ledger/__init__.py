"""The ledger: the SQL database that is the authority for every delivery, attempt and decision."""
