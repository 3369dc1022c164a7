SELECT environment FROM ledger
