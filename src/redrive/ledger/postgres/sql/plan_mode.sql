-- Plans are kept once they cannot have been made for a small table: on a page or two, every index costs the same, and a
-- scan of all of it costs no more than a look-up. 16 pages are enough.
SELECT set_config('plan_cache_mode', CASE
         WHEN pg_relation_size('{schema}.delivery_state') >= 131072 AND pg_relation_size('{schema}.delivery') >= 131072
              AND pg_relation_size('{schema}.event') NOT BETWEEN 1 AND 131071
         THEN 'force_generic_plan' ELSE 'force_custom_plan' END, false)
