-- Repeated enqueues of the newest deliveries that had any. ?1 how many deliveries
SELECT coalesce(sum(duplicates), 0), coalesce(sum(conflicts), 0), count(*)
FROM (SELECT duplicates, conflicts FROM repeat_count ORDER BY seq DESC LIMIT ?1)
