SELECT registry FROM {schema}.ledger
