SELECT digest FROM {schema}.audit ORDER BY audit DESC LIMIT 1
