-- The same for one transaction, where a pooler hands the session to others; and a test's time. $1 time or ''
SELECT set_config('synchronous_commit', CASE current_setting('synchronous_commit') WHEN 'off' THEN 'on'
                                        ELSE current_setting('synchronous_commit') END, true),
       set_config('statement_timeout', '60s', true), set_config('lock_timeout', '10s', true),
       set_config('idle_in_transaction_session_timeout', '60s', true), set_config('jit', 'off', true),
       set_config('plan_cache_mode', 'force_custom_plan', true),
       set_config('redrive.now', $1::text, true)
