-- The newest deliveries by disposition, held apart. $1 how many
SELECT disposition, hold <> 0, count(*)
FROM (SELECT disposition, hold FROM {schema}.delivery_state ORDER BY seq DESC LIMIT $1::bigint) AS newest
GROUP BY 1, 2
