-- A commit that returned is on the disk, whatever the database's default is; a stronger one stays. The rest of what a
-- session of ours relies on are its startup options.
SELECT set_config('synchronous_commit', 'on', false) WHERE current_setting('synchronous_commit') = 'off'
