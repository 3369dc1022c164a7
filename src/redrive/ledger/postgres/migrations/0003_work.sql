-- The hot path, one function for each step, named with a version: a release that changes one adds the next version and
-- leaves this one to the workers that call it, until a later breaking step drops it.
-- Planner settings live here and not in the session, so that a transaction pooler may stand in between. Plans must not
-- depend on statistics: a table that was empty when it was analysed is scanned whole a minute later.

-- env: the environment that is meant, alone or with the time at which the very ledger that is meant was made: name@time.
CREATE FUNCTION {schema}.check_environment(env text) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  known {schema}.ledger;
BEGIN
  SELECT l.* INTO known FROM {schema}.ledger l;
  IF env = known.environment || '@' || known.created_at OR env = known.environment OR env IS NULL THEN
    RETURN;
  ELSIF split_part(env, '@', 1) = known.environment THEN
    RAISE EXCEPTION 'the connection is to another ledger of environment "%"', known.environment USING ERRCODE = 'RD003';
  END IF;
  RAISE EXCEPTION 'the ledger belongs to environment "%", not "%"', known.environment, split_part(env, '@', 1)
    USING ERRCODE = 'RD002';
END
$$;

-- Looks at what was there already. Off the common way, and planned anew at each call: a plan made while a table was small
-- reads all of it later.
CREATE FUNCTION {schema}.known_identities_1(ids bytea)
RETURNS TABLE (o int, seq bigint, first_seen bigint, purged_at bigint, payload_hash bytea) LANGUAGE plpgsql
SET enable_seqscan = off SET plan_cache_mode = force_custom_plan SET jit = off AS $$
BEGIN
  RETURN QUERY
  SELECT k.o, x.seq, x.first_seen, x.purged_at, x.payload_hash
  FROM generate_series(1, length(ids) / 16) k (o)
  JOIN {schema}.identity x ON x.delivery_id = substr(ids, 16 * k.o - 15, 16);
END
$$;

CREATE FUNCTION {schema}.known_events_1(ids bytea)
RETURNS TABLE (o int, event_seq bigint, accepted_at bigint, event_type text, payload_hash bytea) LANGUAGE plpgsql
SET enable_seqscan = off SET plan_cache_mode = force_custom_plan SET jit = off AS $$
BEGIN
  RETURN QUERY
  SELECT k.o, x.event_seq, x.accepted_at, x.event_type, x.payload_hash
  FROM generate_series(1, length(ids) / 16) k (o)
  JOIN {schema}.event x ON x.event_id = substr(ids, 16 * k.o - 15, 16);
END
$$;

CREATE FUNCTION {schema}.deliveries_of_1(events bigint[])
RETURNS TABLE (event_seq bigint, seq bigint, delivery_id bytea) LANGUAGE plpgsql
SET enable_seqscan = off SET plan_cache_mode = force_custom_plan SET jit = off AS $$
BEGIN
  RETURN QUERY
  SELECT d.event_seq, d.seq, d.delivery_id FROM {schema}.delivery d WHERE d.event_seq = ANY (events);
END
$$;

-- Repeated enqueues: listed singly up to 8 for a delivery, and counted, each session in its own row.
CREATE FUNCTION {schema}.note_repeats_1(of_seqs bigint[], how text[], now_us bigint, path text, producer text)
RETURNS void LANGUAGE plpgsql
SET enable_seqscan = off SET plan_cache_mode = force_custom_plan SET jit = off AS $$
BEGIN
  INSERT INTO {schema}.repeat (seq, at, decided, path, producer)
  SELECT r.seq, now_us, r.decided, note_repeats_1.path, note_repeats_1.producer
  FROM (SELECT u.seq, u.decided, u.o, row_number() OVER (PARTITION BY u.seq ORDER BY u.o) AS n
        FROM unnest(of_seqs, how) WITH ORDINALITY u (seq, decided, o)) r
  WHERE r.n + (SELECT count(*) FROM {schema}.repeat k WHERE k.seq = r.seq) <= 8
  ORDER BY r.o;
  INSERT INTO {schema}.repeat_count AS c (seq, session, duplicates, conflicts)
  SELECT u.seq, pg_backend_pid(), count(*) FILTER (WHERE u.decided = 'duplicate'),
         count(*) FILTER (WHERE u.decided = 'conflict')
  FROM unnest(of_seqs, how) u (seq, decided) GROUP BY u.seq ORDER BY u.seq
  ON CONFLICT (seq, session)
  DO UPDATE SET duplicates = c.duplicates + excluded.duplicates, conflicts = c.conflicts + excluded.conflicts;
END
$$;

-- Accept deliveries. kinds: what deliveries have in common, a JSON array of objects; kind: which of them each is (from
-- 1); calls: items of one call are accepted all or none; ids, hashes: as wide as each other, end to end; payloads: end to
-- end, with each one's end. mode: 1 this may be a repetition of a call whose answer was lost, first sent mode / 16
-- milliseconds ago; 2 wake the workers; 4, 8 wait 50 ms, 1 s at most for another transaction.
-- decided is created, duplicate or conflict; nothing of a call with a conflict is accepted. Never raises for either.
CREATE FUNCTION {schema}.accept_1(env text, kinds text, kind int[], calls int[], keys text, ids bytea, hashes bytea,
                                  payloads bytea, ends int[], policies text, path text, producer text, mode int)
RETURNS TABLE (ord int, seq bigint, decided text) LANGUAGE plpgsql
SET enable_seqscan = off SET plan_cache_mode = force_generic_plan SET jit = off AS $$
#variable_conflict use_column
DECLARE
  now_us   bigint := {schema}.clock_us();
  again_us bigint := now_us - 2000000 - (mode >> 4) * 1000::bigint;
  n        int := coalesce(cardinality(kind), 0);
  wide     int := length(hashes) / nullif(n, 0);
  dealt    bigint[];                       -- a number for each item
  fresh    bigint[];                       -- those that were used
  known    bigint[];                       -- of items that were there: number, or null
  verdicts text[];
  refused  int[] := '{}';                  -- calls with a conflict
  opposed  int[] := '{}';                  -- items that made them so
BEGIN
  PERFORM {schema}.check_environment(env);
  IF mode & 12 > 0 THEN
    PERFORM set_config('lock_timeout', CASE WHEN mode & 4 = 4 THEN '50ms' ELSE '1s' END, true);
  END IF;
  INSERT INTO {schema}.policy (version, spec)
  SELECT p.key::bigint, p.value FROM json_each_text(policies::json) p ON CONFLICT (version) DO NOTHING;
  LOOP
    verdicts := NULL;
    BEGIN
      WITH k AS MATERIALIZED (
        SELECT * FROM ROWS FROM (json_to_recordset(kinds::json) AS (
          handler text, tenant text, scope text, destination text, content_type text, envelope_version int,
          route bigint, flow bigint, priority int, hold int, policy_version bigint, max_attempts int, max_age bigint,
          due bigint, delay bigint)) WITH ORDINALITY
      ), item AS MATERIALIZED (
        SELECT nextval('{schema}.delivery_seq') AS seq, i.kind, i.o, i.key,
               substr(ids, 16 * i.o::int - 15, 16) AS delivery_id, substr(hashes, wide * (i.o::int - 1) + 1, wide) AS payload_hash,
               substr(payloads, coalesce(ends[i.o - 1], 0) + 1, i.stop - coalesce(ends[i.o - 1], 0)) AS payload
        FROM ROWS FROM (unnest(kind), unnest(ends), json_array_elements_text(keys::json))
             WITH ORDINALITY i (kind, stop, key, o)
      ), new AS (
        INSERT INTO {schema}.identity (seq, first_seen, delivery_id, payload_hash)
        SELECT i.seq, now_us, i.delivery_id, i.payload_hash FROM item i
        WHERE refused = '{}' OR calls[i.o] <> ALL (refused)
        ORDER BY i.delivery_id, i.o
        ON CONFLICT (delivery_id) DO NOTHING
        RETURNING identity.seq
      ), due AS MATERIALIZED (
        SELECT i.*, k.*, coalesce(k.due, now_us + coalesce(k.delay, 0)) AS available_at,
               -- Waiting for its hour is not ageing: the age budget runs from the moment the work is due.
               greatest(coalesce(k.due, now_us + coalesce(k.delay, 0)), now_us) + k.max_age AS deadline_at
        FROM new JOIN item i ON i.seq = new.seq JOIN k ON k.ordinality = i.kind
        ORDER BY i.seq
      ), fact AS (
        INSERT INTO {schema}.delivery (seq, policy_version, deadline_at, first_queued_at, first_due_at, max_attempts,
                                       envelope_version, first_hold, delivery_id, payload_hash, handler, tenant, scope,
                                       destination, key, content_type, payload)
        SELECT d.seq, d.policy_version, d.deadline_at, now_us, d.available_at, d.max_attempts, d.envelope_version,
               coalesce(d.hold, 0), d.delivery_id, d.payload_hash, d.handler, d.tenant, d.scope,
               coalesce(d.destination, ''), d.key, d.content_type, d.payload
        FROM due d
      ), state AS (
        INSERT INTO {schema}.delivery_state (seq, route, flow, deadline_at, available_at, fence, generation, attempt,
                                             max_attempts, lane, priority, disposition, hold)
        SELECT d.seq, d.route, d.flow, d.deadline_at, d.available_at, 0, 0, 0, d.max_attempts, 0, d.priority, 0,
               coalesce(d.hold, 0)
        FROM due d
      )
      SELECT array_agg(i.seq ORDER BY i.o), (SELECT array_agg(new.seq) FROM new) INTO dealt, fresh FROM item i;
      IF coalesce(cardinality(fresh), 0) = n THEN
        EXIT;
      END IF;
      -- Some were there. Another statement, so that it sees what was committed while the insert waited.
      fresh := coalesce(fresh, '{}');
      SELECT array_agg(CASE WHEN x.purged_at IS NULL THEN x.seq END ORDER BY i.o),
             array_agg(CASE WHEN i.o = ANY (opposed) OR (x.payload_hash <> substr(hashes, wide * (i.o::int - 1) + 1, wide)
                                                         AND NOT i.seq = ANY (fresh)) THEN 'conflict'
                            WHEN i.seq = ANY (fresh) OR calls[i.o] = ANY (refused) AND x.seq IS NULL THEN 'created'
                            WHEN x.seq IS NULL THEN 'gone'
                            WHEN mode & 1 = 1 AND x.first_seen >= again_us THEN 'again'
                            ELSE 'duplicate' END ORDER BY i.o)
      INTO known, verdicts
      FROM unnest(dealt) WITH ORDINALITY i (seq, o)
      LEFT JOIN {schema}.known_identities_1(ids) x ON x.o = i.o;
      -- gone: retention took the row that was in the way.
      IF EXISTS (SELECT 1 FROM unnest(verdicts, calls) v (decided, call)
                 WHERE v.decided = 'gone' OR (v.decided = 'conflict' AND v.call <> ALL (refused))) THEN
        opposed := ARRAY(SELECT v.o FROM unnest(verdicts) WITH ORDINALITY v (decided, o) WHERE v.decided = 'conflict');
        refused := refused || ARRAY(SELECT DISTINCT v.call FROM unnest(verdicts, calls) v (decided, call)
                                    WHERE v.decided = 'conflict' AND v.call <> ALL (refused));
        RAISE EXCEPTION USING ERRCODE = 'RD001';
      END IF;
      EXIT;
    EXCEPTION WHEN SQLSTATE 'RD001' THEN
      NULL;  -- undone; again, without the calls that conflict
    END;
  END LOOP;
  IF mode & 2 = 2 THEN
    PERFORM pg_notify('{schema}', '');
  END IF;
  IF verdicts IS NULL THEN
    RETURN QUERY SELECT u.o::int, u.seq, 'created' FROM unnest(dealt) WITH ORDINALITY u (seq, o);
    RETURN;
  END IF;
  PERFORM {schema}.note_repeats_1(array_agg(u.seq ORDER BY u.o), array_agg(u.decided ORDER BY u.o), now_us,
                                  accept_1.path, accept_1.producer)
  FROM unnest(known, verdicts, calls) WITH ORDINALITY u (seq, decided, call, o)
  WHERE u.seq IS NOT NULL AND (u.decided = 'conflict' OR (u.decided = 'duplicate' AND u.call <> ALL (refused)))
  HAVING count(*) > 0;
  RETURN QUERY
  SELECT u.o::int, coalesce(x.seq, 0), CASE u.decided WHEN 'again' THEN 'created' ELSE u.decided END
  FROM unnest(verdicts) WITH ORDINALITY u (decided, o)
  LEFT JOIN {schema}.known_identities_1(ids) x ON x.o = u.o
  ORDER BY u.o;
END
$$;

-- Publish events: each one, and a delivery for each of the tenant's destinations that subscribes to its type. The first
-- publish freezes the fan-out. heads: a JSON array of objects; the rest as in accept_1.
CREATE FUNCTION {schema}.publish_1(env text, heads text, ids bytea, hashes bytea, payloads bytea, ends int[],
                                   calls int[], path text, producer text, mode int DEFAULT 0)
RETURNS TABLE (ord int, event_seq bigint, decided text, seqs bigint[], delivery_ids bytea[]) LANGUAGE plpgsql
SET enable_seqscan = off SET plan_cache_mode = force_generic_plan SET jit = off AS $$
#variable_conflict use_column
DECLARE
  now_us   bigint := {schema}.clock_us();
  again_us bigint := now_us - 2000000 - (mode >> 4) * 1000::bigint;
  n        int := coalesce(cardinality(ends), 0);
  wide     int := length(hashes) / nullif(n, 0);
  dealt    bigint[];
  fresh    bigint[];
  known    bigint[];
  verdicts text[];
  refused  int[] := '{}';
  opposed  int[] := '{}';
  made_events bigint[];                    -- the new deliveries: events, numbers, IDs
  made_seqs   bigint[];
  made_ids    bytea[];
BEGIN
  PERFORM {schema}.check_environment(env);
  IF mode & 12 > 0 THEN
    PERFORM set_config('lock_timeout', CASE WHEN mode & 4 = 4 THEN '50ms' ELSE '1s' END, true);
  END IF;
  LOOP
    verdicts := NULL;
    BEGIN
      WITH head AS MATERIALIZED (
        SELECT h.*, nextval('{schema}.event_seq') AS event_seq, substr(ids, 16 * h.o::int - 15, 16) AS event_id,
               substr(hashes, wide * (h.o::int - 1) + 1, wide) AS payload_hash,
               substr(payloads, coalesce(ends[h.o - 1], 0) + 1, ends[h.o] - coalesce(ends[h.o - 1], 0)) AS payload
        FROM ROWS FROM (json_to_recordset(heads::json) AS (
               key text, type text, tenant text, scope text, content_type text, envelope_version int,
               occurred_at bigint)) WITH ORDINALITY
             h (key, type, tenant, scope, content_type, envelope_version, occurred_at, o)
      ), pair AS (
        SELECT DISTINCT h.tenant, h.type FROM head h
      ), subscriber AS MATERIALIZED (
        SELECT p.tenant, p.type, d.destination_id, d.scope, d.enabled, d.policy_version, d.max_attempts, d.max_age,
               v.version, {schema}.route_of('webhook', v.version) AS route,
               {schema}.flow_of('webhook', v.version, d.destination_id, p.tenant) AS flow
        FROM pair p JOIN {schema}.destination d ON d.tenant = p.tenant
        CROSS JOIN (SELECT DISTINCT h.envelope_version AS version FROM head h) v
        WHERE EXISTS (SELECT 1 FROM {schema}.subscription s
                      WHERE s.destination_id = d.destination_id AND {schema}.filter_matches(s.filter, p.type))
           OR NOT EXISTS (SELECT 1 FROM {schema}.subscription s WHERE s.destination_id = d.destination_id)
      ), fan AS (
        SELECT s.tenant, s.type, s.version, count(*)::int AS width FROM subscriber s GROUP BY 1, 2, 3
      ), new AS (
        INSERT INTO {schema}.event (event_seq, accepted_at, occurred_at, envelope_version, fan_out, event_id, event_key,
                                    event_type, tenant, scope, content_type, payload_hash, payload)
        SELECT h.event_seq, now_us, h.occurred_at, h.envelope_version, coalesce(f.width, 0), h.event_id, h.key, h.type,
               h.tenant, h.scope, h.content_type, h.payload_hash, h.payload
        FROM head h
        LEFT JOIN fan f ON f.tenant = h.tenant AND f.type = h.type AND f.version = h.envelope_version
        WHERE refused = '{}' OR calls[h.o] <> ALL (refused)
        ORDER BY h.event_id, h.o
        ON CONFLICT (event_id) DO NOTHING
        RETURNING event.event_seq
      ), item AS MATERIALIZED (
        SELECT nextval('{schema}.delivery_seq') AS seq, w.*, now_us + w.max_age AS deadline_at,
               {schema}.webhook_delivery_id(w.tenant, w.event_id, w.destination_id) AS delivery_id,
               CASE WHEN w.enabled = 1 THEN 0 ELSE 1 END AS hold
        FROM (SELECT h.event_seq, h.event_id, h.key, h.tenant, h.content_type, h.envelope_version, h.payload_hash,
                     coalesce(h.scope, s.scope) AS scope, s.destination_id, s.enabled, s.policy_version, s.max_attempts,
                     s.max_age, s.route, s.flow
              FROM new JOIN head h ON h.event_seq = new.event_seq
              JOIN subscriber s ON s.tenant = h.tenant AND s.type = h.type AND s.version = h.envelope_version
              ORDER BY h.o, s.destination_id) w
      ), taken AS (
        INSERT INTO {schema}.identity (seq, first_seen, delivery_id, payload_hash)
        SELECT i.seq, now_us, i.delivery_id, i.payload_hash FROM item i ORDER BY i.delivery_id
        ON CONFLICT (delivery_id) DO NOTHING
        RETURNING identity.seq
      ), fact AS (
        INSERT INTO {schema}.delivery (seq, event_seq, policy_version, deadline_at, first_queued_at, first_due_at,
                                       max_attempts, envelope_version, first_hold, delivery_id, payload_hash, handler,
                                       tenant, scope, destination, key, content_type)
        SELECT i.seq, i.event_seq, i.policy_version, i.deadline_at, now_us, now_us, i.max_attempts, i.envelope_version,
               i.hold, i.delivery_id, i.payload_hash, 'webhook', i.tenant, i.scope, i.destination_id, i.key,
               i.content_type
        FROM taken JOIN item i ON i.seq = taken.seq ORDER BY i.seq
      ), state AS (
        INSERT INTO {schema}.delivery_state (seq, route, flow, deadline_at, available_at, fence, generation, attempt,
                                             max_attempts, lane, priority, disposition, hold)
        SELECT i.seq, i.route, i.flow, i.deadline_at, now_us, 0, 0, 0, i.max_attempts, 0, 2, 0, i.hold
        FROM taken JOIN item i ON i.seq = taken.seq ORDER BY i.seq
      )
      SELECT array_agg(h.event_seq ORDER BY h.o), (SELECT array_agg(new.event_seq) FROM new), m.events, m.seqs, m.ids
      INTO dealt, fresh, made_events, made_seqs, made_ids
      FROM head h CROSS JOIN (
        SELECT array_agg(i.event_seq) AS events, array_agg(i.seq) AS seqs, array_agg(i.delivery_id) AS ids
        FROM taken JOIN item i ON i.seq = taken.seq) m
      GROUP BY m.events, m.seqs, m.ids;
      EXIT WHEN coalesce(cardinality(fresh), 0) = n;
      fresh := coalesce(fresh, '{}');
      SELECT array_agg(x.event_seq ORDER BY i.o),
             array_agg(CASE WHEN i.o = ANY (opposed)
                              OR ((x.payload_hash <> substr(hashes, wide * (i.o::int - 1) + 1, wide)
                                   OR x.event_type <> heads::json -> (i.o::int - 1) ->> 'type')
                                  AND NOT i.seq = ANY (fresh)) THEN 'conflict'
                            WHEN i.seq = ANY (fresh) OR calls[i.o] = ANY (refused) AND x.event_seq IS NULL THEN 'created'
                            WHEN x.event_seq IS NULL THEN 'gone'
                            WHEN mode & 1 = 1 AND x.accepted_at >= again_us THEN 'again'
                            ELSE 'duplicate' END ORDER BY i.o)
      INTO known, verdicts
      FROM unnest(dealt) WITH ORDINALITY i (seq, o)
      LEFT JOIN {schema}.known_events_1(ids) x ON x.o = i.o;
      -- gone: retention took the row that was in the way.
      IF EXISTS (SELECT 1 FROM unnest(verdicts, calls) v (decided, call)
                 WHERE v.decided = 'gone' OR (v.decided = 'conflict' AND v.call <> ALL (refused))) THEN
        opposed := ARRAY(SELECT v.o FROM unnest(verdicts) WITH ORDINALITY v (decided, o) WHERE v.decided = 'conflict');
        refused := refused || ARRAY(SELECT DISTINCT v.call FROM unnest(verdicts, calls) v (decided, call)
                                    WHERE v.decided = 'conflict' AND v.call <> ALL (refused));
        RAISE EXCEPTION USING ERRCODE = 'RD001';
      END IF;
      EXIT;
    EXCEPTION WHEN SQLSTATE 'RD001' THEN
      NULL;
    END;
  END LOOP;
  IF mode & 2 = 2 THEN
    PERFORM pg_notify('{schema}', '');
  END IF;
  IF verdicts IS NULL THEN
    RETURN QUERY
    SELECT u.o::int, u.seq, 'created', coalesce(m.seqs, '{}'), coalesce(m.ids, '{}')
    FROM unnest(dealt) WITH ORDINALITY u (seq, o)
    LEFT JOIN (SELECT x.event_seq, array_agg(x.seq ORDER BY x.seq) AS seqs, array_agg(x.id ORDER BY x.seq) AS ids
               FROM unnest(made_events, made_seqs, made_ids) x (event_seq, seq, id) GROUP BY x.event_seq) m
      ON m.event_seq = u.seq
    ORDER BY u.o;
    RETURN;
  END IF;
  -- A repeat is noted with every delivery that the first publish made.
  PERFORM {schema}.note_repeats_1(array_agg(d.seq ORDER BY u.o, d.seq), array_agg(u.decided ORDER BY u.o, d.seq),
                                  now_us, publish_1.path, publish_1.producer)
  FROM unnest(known, verdicts, calls) WITH ORDINALITY u (seq, decided, call, o)
  JOIN {schema}.deliveries_of_1(known) d ON d.event_seq = u.seq
  WHERE u.decided = 'conflict' OR (u.decided = 'duplicate' AND u.call <> ALL (refused))
  HAVING count(*) > 0;
  -- One that went to nobody has no delivery to be noted with.
  INSERT INTO {schema}.rejection AS r (code, session, count)
  SELECT 'conflict', pg_backend_pid(), count(*)
  FROM unnest(known, verdicts) u (seq, decided)
  WHERE u.decided = 'conflict' AND u.seq NOT IN (SELECT d.event_seq FROM {schema}.deliveries_of_1(known) d)
  HAVING count(*) > 0
  ON CONFLICT (code, session) DO UPDATE SET count = r.count + excluded.count;
  RETURN QUERY
  SELECT u.o::int, coalesce(u.seq, 0), CASE u.decided WHEN 'again' THEN 'created' ELSE u.decided END,
         coalesce(m.seqs, '{}'), coalesce(m.ids, '{}')
  FROM unnest(known, verdicts) WITH ORDINALITY u (seq, decided, o)
  LEFT JOIN (SELECT d.event_seq, array_agg(d.seq ORDER BY d.seq) AS seqs, array_agg(d.delivery_id ORDER BY d.seq) AS ids
             FROM {schema}.deliveries_of_1(known) d GROUP BY d.event_seq) m ON m.event_seq = u.seq
  ORDER BY u.o;
END
$$;
