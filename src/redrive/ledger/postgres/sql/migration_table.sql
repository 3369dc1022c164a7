CREATE TABLE {schema}.schema_migration (
  version    integer NOT NULL PRIMARY KEY,
  name       text    NOT NULL,
  digest     text    NOT NULL,
  breaking   boolean NOT NULL,
  applied_at bigint  NOT NULL
)
