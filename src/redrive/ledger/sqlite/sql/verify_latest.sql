-- The latest time in the tables that are not read delivery by delivery.
SELECT max(coalesce((SELECT max(seen_at) FROM worker), 0), coalesce((SELECT max(stopped_at) FROM worker), 0),
           coalesce((SELECT max(at) FROM audit), 0))
