-- The worker's side of the hot path. Plans must not depend on statistics, nor on what the tables were when a session
-- began: planner settings are in the functions, and a session of ours plans anew until the tables have grown (plan_mode).

-- Charge and lease up to want due deliveries: routes in the order given, then priority, then age. since: the latest
-- started_at that this worker has seen; lost: its last answer may not have arrived, so leases it began after since come
-- first. lows: for each route, an available_at before which there is nothing to find, as far as the worker knows; 0 looks
-- at all. A snapshot that somebody holds keeps dead index entries from being cleared away, and a drain would walk over
-- all of its own at every claim. Rows that another claim holds are passed over.
CREATE FUNCTION {schema}.reserve_1(by_worker int, of_routes bigint[], lows bigint[], want int, lease_us bigint,
                                   since bigint, lost boolean)
RETURNS TABLE (seq bigint, delivery_id bytea, handler text, tenant text, scope text, destination text, generation int,
               attempt int, max_attempts int, deadline_at bigint, fence bigint, started_at bigint, leased_until bigint,
               deferrals int, ambiguous boolean, envelope_version int, content_type text, payload bytea,
               payload_hash bytea, policy_version bigint, event_id bytea, event_type text, occurred_at bigint,
               available_at bigint)
LANGUAGE plpgsql
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET enable_bitmapscan = off
SET enable_sort = off SET jit = off SET lock_timeout = '5s' AS $$
#variable_conflict use_column
DECLARE
  now_us bigint := greatest({schema}.clock_us(), since + 1);
  got    tid[] := '{}';
BEGIN
  IF lost THEN
    WITH adopted AS (
      UPDATE {schema}.delivery_state s
      SET leased_until = greatest(s.leased_until, now_us + lease_us)   -- the worker counts from this answer on
      WHERE s.disposition + 0 = 1 AND s.ctid = ANY (ARRAY(
        SELECT s.ctid FROM {schema}.delivery_state s
        WHERE s.disposition <= 1
          AND (CASE WHEN s.disposition = 1 THEN s.leased_until ELSE s.deadline_at END) > now_us
          AND (CASE WHEN s.disposition = 1 THEN s.leased_until ELSE s.deadline_at END) <= now_us + 3600000000
          AND s.disposition = 1 AND s.leased_by = by_worker AND s.started_at > since
        FOR UPDATE SKIP LOCKED))
      RETURNING s.ctid
    )
    SELECT coalesce(array_agg(a.ctid), '{}') INTO got FROM adopted a;
  END IF;
  IF got = '{}' THEN
    -- One statement, walked as far as it has to be: while plans are not kept, planning is what a claim costs.
    got := ARRAY(SELECT due.ctid
                 FROM unnest(of_routes, lows) WITH ORDINALITY r (route, low, o) CROSS JOIN generate_series(0, 3) p (priority)
                 CROSS JOIN LATERAL (
                   SELECT s.ctid FROM {schema}.delivery_state s
                   WHERE s.disposition = 0 AND s.hold = 0 AND s.route = r.route AND s.priority = p.priority
                     AND s.available_at >= r.low AND s.available_at <= now_us AND s.deadline_at > now_us
                   ORDER BY s.available_at, s.seq
                   LIMIT want FOR UPDATE SKIP LOCKED) due
                 LIMIT want);
    IF got = '{}' THEN
      RETURN;
    END IF;
    -- By place: the rows are locked, so that nobody moves them.
    RETURN QUERY
    WITH s AS (
      UPDATE {schema}.delivery_state s
      SET disposition = 1, attempt = s.attempt + 1, fence = s.fence + 1, leased_by = by_worker,
          leased_until = now_us + lease_us, started_at = now_us
      WHERE s.ctid = ANY (got) AND s.disposition + 0 = 0 AND s.attempt < s.max_attempts
      RETURNING s.seq, s.priority, s.available_at, s.generation, s.attempt, s.max_attempts, s.deadline_at, s.fence,
                s.started_at, s.leased_until, s.deferrals, s.ambiguous
    )
    SELECT s.seq, d.delivery_id, d.handler, d.tenant, d.scope, d.destination, s.generation, s.attempt, s.max_attempts,
           s.deadline_at, s.fence, s.started_at, s.leased_until, s.deferrals, s.ambiguous = 1, d.envelope_version,
           d.content_type, coalesce(d.payload, e.payload), d.payload_hash,
           CASE WHEN s.generation = 0 THEN d.policy_version
                ELSE (SELECT g.policy_version FROM {schema}.generation g
                      WHERE g.seq = s.seq AND g.generation = s.generation) END,
           e.event_id, e.event_type, e.occurred_at, s.available_at
    FROM s JOIN {schema}.delivery d ON d.seq = s.seq LEFT JOIN {schema}.event e ON e.event_seq = d.event_seq
    ORDER BY s.priority, s.available_at, s.seq;
    RETURN;
  END IF;
  RETURN QUERY
  SELECT s.seq, d.delivery_id, d.handler, d.tenant, d.scope, d.destination, s.generation, s.attempt, s.max_attempts,
         s.deadline_at, s.fence, s.started_at, s.leased_until, s.deferrals, s.ambiguous = 1, d.envelope_version,
         d.content_type, coalesce(d.payload, e.payload), d.payload_hash,
         CASE WHEN s.generation = 0 THEN d.policy_version
              ELSE (SELECT g.policy_version FROM {schema}.generation g
                    WHERE g.seq = s.seq AND g.generation = s.generation) END,
         e.event_id, e.event_type, e.occurred_at, s.available_at
  FROM {schema}.delivery_state s
  JOIN {schema}.delivery d ON d.seq = s.seq
  LEFT JOIN {schema}.event e ON e.event_seq = d.event_seq
  WHERE s.ctid = ANY (got) AND s.disposition + 0 = 1
  ORDER BY s.priority, s.available_at, s.seq;
END
$$;

-- Record plain successes under their current, unexpired leases: the state row ends and the attempt row is written. seqs
-- must be in order, so that two batches lock in one order. Returns the seqs that were closed; the rest is for the slow
-- way, which looks at each. So is all of it when somebody else's transaction holds one of them.
CREATE FUNCTION {schema}.close_1(by_worker int, of_seqs bigint[], fences bigint[], generations int[], numbers int[],
                                 starts bigint[], put_off int[], durations bigint[], as_outcome text, as_category text,
                                 as_status int, as_flags int, as_disposition int)
RETURNS bigint[] LANGUAGE plpgsql
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET enable_bitmapscan = off
SET jit = off SET lock_timeout = '100ms' AS $$
DECLARE
  now_us bigint := {schema}.clock_us();
  done   bigint[];
BEGIN
  WITH ended AS (
    UPDATE {schema}.delivery_state s
    SET disposition = as_disposition, leased_by = NULL, leased_until = NULL, started_at = NULL, deferrals = 0,
        own_faults = 0, ambiguous = 0, last_category = as_category
    FROM unnest(of_seqs, fences, generations, numbers, starts, put_off, durations)
         c (seq, fence, generation, number, started_at, deferrals, duration)
    -- disposition + 0: else the planner may prefer the index on live rows to the key.
    WHERE s.seq = c.seq AND s.fence = c.fence AND s.disposition + 0 = 1 AND s.leased_until > now_us
    RETURNING c.seq, c.fence, c.generation, c.number, c.started_at, c.deferrals, c.duration
  ), recorded AS (
    INSERT INTO {schema}.attempt (seq, fence, started_at, ended_at, duration, generation, number, worker, status,
                                  deferrals, flags, outcome, category)
    SELECT e.seq, e.fence, e.started_at, greatest(now_us, e.started_at), e.duration, e.generation, e.number, by_worker,
           as_status, e.deferrals, as_flags, as_outcome, as_category
    FROM ended e
    RETURNING seq
  )
  SELECT array_agg(r.seq) INTO done FROM recorded r;
  RETURN coalesce(done, '{}');
END
$$;

-- Extend leases that are still held, and say that the worker lives. Rows that somebody else's transaction holds are left
-- as they are: one of them must not keep all others from being extended. lost: no longer held. untouched: left alone.
CREATE FUNCTION {schema}.extend_1(by_worker int, of_seqs bigint[], fences bigint[], lease_us bigint,
                                  OUT lost bigint[], OUT untouched bigint[])
LANGUAGE plpgsql
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET enable_bitmapscan = off
SET jit = off SET lock_timeout = '5s' AS $$
DECLARE
  now_us bigint := {schema}.clock_us();
  free   tid[];
  kept   bigint[];
  held   bigint[];
BEGIN
  free := ARRAY(SELECT s.ctid FROM unnest(of_seqs, fences) c (seq, fence) JOIN {schema}.delivery_state s ON s.seq = c.seq
                WHERE s.fence = c.fence AND s.disposition + 0 = 1 AND s.leased_by = by_worker
                ORDER BY s.seq FOR UPDATE OF s SKIP LOCKED);
  WITH longer AS (
    UPDATE {schema}.delivery_state s SET leased_until = greatest(s.leased_until, now_us + lease_us)
    WHERE s.ctid = ANY (free) AND s.disposition + 0 = 1
    RETURNING s.seq
  )
  SELECT coalesce(array_agg(l.seq), '{}') INTO kept FROM longer l;
  UPDATE {schema}.worker w SET seen_at = now_us WHERE w.worker = by_worker;
  held := ARRAY(SELECT s.seq FROM unnest(of_seqs, fences) c (seq, fence) JOIN {schema}.delivery_state s ON s.seq = c.seq
                WHERE cardinality(kept) < cardinality(of_seqs) AND s.fence = c.fence AND s.disposition + 0 = 1
                  AND s.leased_by = by_worker);
  lost := ARRAY(SELECT c.seq FROM unnest(of_seqs) c (seq) WHERE c.seq <> ALL (kept) AND c.seq <> ALL (held));
  untouched := ARRAY(SELECT c.seq FROM unnest(of_seqs) c (seq) WHERE c.seq <> ALL (kept) AND c.seq = ANY (held));
END
$$;
