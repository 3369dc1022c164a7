SELECT routes FROM worker WHERE stopped_at IS NULL AND seen_at >= ?1
