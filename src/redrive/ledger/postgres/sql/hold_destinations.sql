-- The destination of each flow that has something held, from one flow to the next by the index.
WITH RECURSIVE f (flow) AS (
  (SELECT flow FROM {schema}.delivery_state WHERE hold <> 0 ORDER BY flow LIMIT 1)
  UNION ALL
  SELECT (SELECT s.flow FROM {schema}.delivery_state s WHERE s.hold <> 0 AND s.flow > f.flow ORDER BY s.flow LIMIT 1)
  FROM f WHERE f.flow IS NOT NULL
)
SELECT (SELECT d.destination FROM {schema}.delivery d
        WHERE d.seq = (SELECT s.seq FROM {schema}.delivery_state s WHERE s.hold <> 0 AND s.flow = f.flow LIMIT 1))
FROM f WHERE f.flow IS NOT NULL
