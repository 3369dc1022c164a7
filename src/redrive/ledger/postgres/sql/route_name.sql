-- What a route with something waiting stands for. $1 route
SELECT d.handler, d.envelope_version
FROM {schema}.delivery d
WHERE d.seq = (SELECT s.seq FROM {schema}.delivery_state s
               WHERE s.disposition = 0 AND s.hold = 0 AND s.route = $1::bigint
               ORDER BY s.route, s.priority LIMIT 1)
