SELECT coalesce(max(seq), 0) + 1 FROM identity
