CREATE TABLE IF NOT EXISTS schema_migration (
  version    INTEGER NOT NULL PRIMARY KEY,
  name       TEXT    NOT NULL,
  digest     TEXT    NOT NULL,
  breaking   INTEGER NOT NULL,
  applied_at INTEGER NOT NULL
) STRICT
