UPDATE {schema}.ledger SET registry = $1::bigint
