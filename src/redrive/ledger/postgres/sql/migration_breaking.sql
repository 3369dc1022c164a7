-- The first step after $1 that releases which do not know it must keep away from.
SELECT min(version) FROM {schema}.schema_migration WHERE version > $1 AND breaking
