UPDATE ledger SET registry = ?1
