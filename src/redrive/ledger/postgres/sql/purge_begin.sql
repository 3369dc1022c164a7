-- From here to the end this transaction may delete.
SELECT set_config('redrive.purging', 'on', true)
