-- For the rest of a read: plans that walk indexes, whatever the statistics were taken on. Where a table has no fitting
-- index it is still scanned. $1 whether to sort where another index gives the order, as on or off
SELECT set_config('enable_seqscan', 'off', true), set_config('enable_bitmapscan', 'off', true),
       set_config('enable_hashjoin', 'off', true), set_config('enable_mergejoin', 'off', true),
       set_config('enable_hashagg', 'off', true), set_config('jit', 'off', true),
       set_config('enable_sort', $1::text, true)
