-- The destination of each flow that has something held, from one flow to the next by the index. Looked up in a scalar
-- subquery: for a join, SQLite may first read all of delivery into a Bloom filter.
WITH RECURSIVE f (flow) AS (
  SELECT min(flow) FROM delivery_state INDEXED BY delivery_state_held WHERE hold <> 0
  UNION ALL
  SELECT (SELECT min(s.flow) FROM delivery_state s INDEXED BY delivery_state_held
          WHERE s.hold <> 0 AND s.flow > f.flow)
  FROM f WHERE f.flow IS NOT NULL
)
SELECT (SELECT d.destination FROM delivery_state s INDEXED BY delivery_state_held CROSS JOIN delivery d ON d.seq = s.seq
        WHERE s.hold <> 0 AND s.flow = f.flow LIMIT 1)
FROM f WHERE f.flow IS NOT NULL
