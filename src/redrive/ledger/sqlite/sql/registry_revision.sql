SELECT registry FROM ledger
