SELECT coalesce(max(event_seq), 0) + 1 FROM event
