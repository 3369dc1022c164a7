DELETE FROM purging
