-- Live deliveries by handler, envelope version and policy version: waiting, held and leased ones, when the oldest was
-- accepted; then how many held ones, leased ones and held flows were looked at. Every route that waits is found, by the
-- index, and every flow that is held; of each route, and of each list, no more rows are read than the cap. A lease lasts
-- an hour at most, so waiting work whose age ends later is not read for the leased ones. $1 cap $2 most routes, flows
WITH RECURSIVE
route (route) AS (
  (SELECT route FROM {schema}.delivery_state WHERE disposition = 0 AND hold = 0 ORDER BY route LIMIT 1)
  UNION ALL
  SELECT (SELECT s.route FROM {schema}.delivery_state s
          WHERE s.disposition = 0 AND s.hold = 0 AND s.route > r.route ORDER BY s.route LIMIT 1)
  FROM route r WHERE r.route IS NOT NULL
),
flow (flow) AS (
  (SELECT flow FROM {schema}.delivery_state WHERE hold <> 0 ORDER BY flow LIMIT 1)
  UNION ALL
  SELECT (SELECT s.flow FROM {schema}.delivery_state s
          WHERE s.hold <> 0 AND s.flow > f.flow ORDER BY s.flow LIMIT 1)
  FROM flow f WHERE f.flow IS NOT NULL
),
flows (flow) AS MATERIALIZED (SELECT flow FROM flow WHERE flow IS NOT NULL LIMIT $2::bigint),
held (seq) AS MATERIALIZED (
  SELECT (SELECT s.seq FROM {schema}.delivery_state s WHERE s.hold <> 0 AND s.flow = f.flow ORDER BY s.flow LIMIT 1)
  FROM flows f
  UNION
  SELECT w.seq FROM (SELECT seq FROM {schema}.delivery_state WHERE hold <> 0 ORDER BY flow LIMIT $1::bigint) w
),
leased (seq) AS MATERIALIZED (
  SELECT seq FROM {schema}.delivery_state
  WHERE disposition <= 1 AND (CASE WHEN disposition = 1 THEN leased_until ELSE deadline_at END)
                             <= (SELECT {schema}.clock_us()) + 3600000000
    AND disposition = 1
  LIMIT $1::bigint
),
live (seq, kind) AS (
  SELECT w.seq, 0
  FROM (SELECT route FROM route WHERE route IS NOT NULL LIMIT $2::bigint) r
  CROSS JOIN LATERAL (SELECT s.seq FROM {schema}.delivery_state s
                      WHERE s.disposition = 0 AND s.hold = 0 AND s.route = r.route
                      ORDER BY s.route, s.priority, s.available_at LIMIT $1::bigint) w
  UNION ALL
  SELECT seq, 1 FROM held
  UNION ALL
  SELECT seq, 2 FROM leased
)
SELECT d.handler, d.envelope_version,
       CASE s.generation WHEN 0 THEN d.policy_version
            ELSE (SELECT g.policy_version FROM {schema}.generation g
                  WHERE g.seq = l.seq AND g.generation = s.generation) END AS policy,
       count(*) FILTER (WHERE l.kind = 0), count(*) FILTER (WHERE l.kind = 1 AND s.disposition = 0),
       count(*) FILTER (WHERE l.kind = 2), min(d.first_queued_at),
       (SELECT count(*) FROM held), (SELECT count(*) FROM leased), (SELECT count(*) FROM flows)
FROM live l
CROSS JOIN LATERAL (SELECT t.generation, t.disposition FROM {schema}.delivery_state t WHERE t.seq = l.seq OFFSET 0) s
CROSS JOIN LATERAL (SELECT e.handler, e.envelope_version, e.policy_version, e.first_queued_at
                    FROM {schema}.delivery e WHERE e.seq = l.seq OFFSET 0) d
WHERE s.disposition <= 1
GROUP BY d.handler, d.envelope_version, policy
ORDER BY d.handler COLLATE "C", d.envelope_version, policy
