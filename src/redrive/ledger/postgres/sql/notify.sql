SELECT pg_notify('{schema}', '')
