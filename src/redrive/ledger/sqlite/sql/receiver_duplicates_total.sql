SELECT coalesce(sum(count), 0) FROM receiver_duplicate
