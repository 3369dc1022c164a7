SELECT environment FROM {schema}.ledger
