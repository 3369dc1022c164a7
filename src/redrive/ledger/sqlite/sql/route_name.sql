-- What a route with something waiting stands for. ?1 route
SELECT d.handler, d.envelope_version
FROM delivery_state s INDEXED BY delivery_state_ready CROSS JOIN delivery d ON d.seq = s.seq
WHERE s.disposition = 0 AND s.hold = 0 AND s.route = ?1
LIMIT 1
