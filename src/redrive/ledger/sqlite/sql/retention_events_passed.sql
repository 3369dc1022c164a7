-- ?1 from ?2 to
UPDATE retention SET event_after = ?2 WHERE event_after = ?1
