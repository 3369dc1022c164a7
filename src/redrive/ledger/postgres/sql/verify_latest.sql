-- The latest time in the tables that are not read delivery by delivery.
SELECT greatest(coalesce((SELECT max(seen_at) FROM {schema}.worker), 0),
                coalesce((SELECT max(stopped_at) FROM {schema}.worker), 0),
                coalesce((SELECT max(at) FROM {schema}.audit), 0))
