-- Live deliveries by handler, envelope version and policy version: waiting, held and leased ones, when the oldest was
-- accepted; then how many held ones, leased ones and held flows were looked at. Every route that waits is found, by the
-- index, and every flow that is held; of each route, and of each list, no more rows are read than the cap.
-- ?1 cap ?2 most routes, flows
WITH RECURSIVE
route (route) AS (
  SELECT min(route) FROM delivery_state INDEXED BY delivery_state_ready WHERE disposition = 0 AND hold = 0
  UNION ALL
  SELECT (SELECT min(s.route) FROM delivery_state s INDEXED BY delivery_state_ready
          WHERE s.disposition = 0 AND s.hold = 0 AND s.route > r.route)
  FROM route r WHERE r.route IS NOT NULL
  LIMIT ?2
),
flow (flow) AS (
  SELECT min(flow) FROM delivery_state INDEXED BY delivery_state_held WHERE hold <> 0
  UNION ALL
  SELECT (SELECT min(s.flow) FROM delivery_state s INDEXED BY delivery_state_held
          WHERE s.hold <> 0 AND s.flow > f.flow)
  FROM flow f WHERE f.flow IS NOT NULL
  LIMIT ?2
),
flows (flow) AS MATERIALIZED (SELECT flow FROM flow WHERE flow IS NOT NULL),
held (seq) AS MATERIALIZED (
  SELECT (SELECT s.seq FROM delivery_state s INDEXED BY delivery_state_held
          WHERE s.hold <> 0 AND s.flow = f.flow LIMIT 1)
  FROM flows f
  UNION
  SELECT seq FROM (SELECT seq FROM delivery_state INDEXED BY delivery_state_held WHERE hold <> 0 LIMIT ?1)
),
leased (seq) AS MATERIALIZED (
  SELECT seq FROM delivery_state INDEXED BY delivery_state_leased WHERE disposition = 1 LIMIT ?1
),
live (seq, kind) AS (
  SELECT s.seq, 0 FROM route r CROSS JOIN delivery_state s
  WHERE s.seq IN (SELECT w.seq FROM delivery_state w INDEXED BY delivery_state_ready
                  WHERE w.disposition = 0 AND w.hold = 0 AND w.route = r.route LIMIT ?1)
  UNION ALL
  SELECT seq, 1 FROM held
  UNION ALL
  SELECT seq, 2 FROM leased
)
SELECT d.handler, d.envelope_version,
       CASE s.generation WHEN 0 THEN d.policy_version
            ELSE (SELECT g.policy_version FROM generation g WHERE g.seq = s.seq AND g.generation = s.generation) END
         AS policy,
       sum(l.kind = 0), sum(l.kind = 1 AND s.disposition = 0), sum(l.kind = 2), min(d.first_queued_at),
       (SELECT count(*) FROM held), (SELECT count(*) FROM leased), (SELECT count(*) FROM flows)
FROM live l CROSS JOIN delivery_state s ON s.seq = l.seq CROSS JOIN delivery d ON d.seq = l.seq
WHERE s.disposition <= 1
GROUP BY d.handler, d.envelope_version, policy
ORDER BY d.handler, d.envelope_version, policy
