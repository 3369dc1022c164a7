SELECT version, name, digest FROM schema_migration
