SELECT set_config('redrive.purging', 'off', true)
