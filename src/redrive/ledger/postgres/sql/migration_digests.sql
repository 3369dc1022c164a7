SELECT version, name, digest FROM {schema}.schema_migration
