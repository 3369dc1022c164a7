-- Repeated enqueues of the newest deliveries that had any. $1 how many deliveries
SELECT coalesce(sum(duplicates), 0)::bigint, coalesce(sum(conflicts), 0)::bigint, count(*)
FROM (SELECT sum(duplicates) AS duplicates, sum(conflicts) AS conflicts FROM {schema}.repeat_count
      GROUP BY seq ORDER BY seq DESC LIMIT $1::bigint) AS newest
