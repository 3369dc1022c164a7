-- From here to purge_end this transaction may delete. It holds the file's write lock: nobody else sees the row.
INSERT INTO purging (one) VALUES (1) ON CONFLICT (one) DO NOTHING
