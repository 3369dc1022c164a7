-- The public functions: any language enqueues and publishes with one SELECT, in its own transaction. docs/sql.md is
-- their page. Bad input raises 22023; a duplicate or a conflict never raises, so that the transaction goes on.

-- --- enqueue ---------------------------------------------------------------------------------------------------------

-- One job, checked and derived. kind is what accept_1 wants of it; place begins what an error says.
CREATE FUNCTION {schema}.delivery_of(handler text, payload json, key json, tenant text, scope text, destination text,
                                     delay interval, at timestamptz, priority integer, policy json, place text,
                                     OUT kind text, OUT key_shown text, OUT id bytea, OUT hash bytea, OUT body bytea,
                                     OUT policy_version bigint, OUT spec text)
LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
  envelope     integer := 1;
  max_attempts integer;
  max_age      bigint;
  due          bigint;
  wait         bigint := 0;
  ten_years    CONSTANT bigint := 315360000000000;
BEGIN
  PERFORM {schema}.check_slug(handler, place || 'handler');
  PERFORM {schema}.check_label(tenant, place || 'tenant');
  IF scope IS NOT NULL THEN
    PERFORM {schema}.check_label(scope, place || 'scope');
  END IF;
  destination := coalesce(destination, '');
  IF destination <> '' THEN
    PERFORM {schema}.check_label(destination, place || 'destination');
  END IF;
  IF handler = 'webhook' THEN
    PERFORM {schema}.bad_input(place || 'webhooks are published, not enqueued', 'use publish()');
  ELSIF priority IS NULL OR priority NOT BETWEEN 0 AND 3 THEN
    PERFORM {schema}.bad_input(place || 'priority must be 0, 1, 2 or 3');
  ELSIF delay IS NOT NULL AND at IS NOT NULL THEN
    PERFORM {schema}.bad_input(place || 'both delay and at are given', 'give one of the two');
  END IF;
  SELECT h.envelope_version, h.policy_version, h.max_attempts, h.max_age
  INTO envelope, policy_version, max_attempts, max_age
  FROM {schema}.handler AS h WHERE h.handler = delivery_of.handler;
  IF policy IS NOT NULL AND json_typeof(policy) <> 'null' THEN
    SELECT p.spec, p.version, p.max_attempts, p.max_age INTO spec, policy_version, max_attempts, max_age
    FROM {schema}.policy_of(policy, place || 'policy') AS p;
  ELSIF policy_version IS NULL THEN
    PERFORM {schema}.bad_input(place || 'no worker has registered a handler "' || handler || '"',
      'check its name, start a worker that has it, or pass the policy that this job is to have; {} is the default one');
  END IF;
  IF delay IS NOT NULL THEN
    wait := round(extract(epoch FROM delay) * 1000000)::bigint;
    IF wait < 0 OR wait > ten_years THEN
      PERFORM {schema}.bad_input(place || 'delay must be zero to ten years');
    END IF;
  END IF;
  IF at IS NOT NULL THEN
    due := {schema}.instant_us(at, place || 'at');
    IF due - {schema}.clock_us() > ten_years THEN
      PERFORM {schema}.bad_input(place || 'at is longer than ten years from now');
    END IF;
  END IF;
  id := {schema}.delivery_id(handler, tenant, {schema}.key_of(key, place || 'key'));
  key_shown := {schema}.key_text(key);
  body := {schema}.utf8({schema}.canonical_json(payload, place || 'the payload'));
  PERFORM {schema}.check_size(octet_length(body), place || 'the payload');
  hash := {schema}.payload_hash('application/json', body);
  envelope := coalesce(envelope, 1);
  kind := json_build_object('handler', handler, 'tenant', tenant, 'scope', scope, 'destination', destination,
    'content_type', 'application/json', 'envelope_version', envelope,
    'route', {schema}.route_of(handler, envelope), 'flow', {schema}.flow_of(handler, envelope, destination, tenant),
    'priority', priority, 'hold', 0, 'policy_version', policy_version, 'max_attempts', max_attempts,
    'max_age', max_age, 'due', due, 'delay', wait)::text;
END
$$;

-- Enqueue one job. decided: created; duplicate (the same work was there, and this is its delivery); conflict (it was
-- there with another payload, and nothing was enqueued).
CREATE FUNCTION {schema}.enqueue(handler text, payload json DEFAULT NULL, key json DEFAULT NULL,
                                 tenant text DEFAULT 'default', scope text DEFAULT NULL, destination text DEFAULT '',
                                 delay interval DEFAULT NULL, at timestamptz DEFAULT NULL, priority integer DEFAULT 2,
                                 policy json DEFAULT NULL, environment text DEFAULT NULL)
RETURNS TABLE (delivery_id text, decided text) LANGUAGE plpgsql ROWS 1 AS $$
DECLARE
  job record;
BEGIN
  job := {schema}.delivery_of(handler, payload, key, tenant, scope, destination, delay, at, priority, policy, '');
  RETURN QUERY
  SELECT {schema}.to_text('dlv', job.id), a.decided
  FROM {schema}.accept_1(environment, '[' || job.kind || ']', '{1}', '{1}', json_build_array(job.key_shown)::text,
    job.id, job.hash, job.body, ARRAY[octet_length(job.body)],
    CASE WHEN job.spec IS NULL THEN '{}' ELSE json_build_object(job.policy_version, job.spec)::text END,
    'sql', {schema}.producer(),
    {schema}.wake()) AS a;
END
$$;

-- The objects of a batch, each with its members' names and values; a member that would be ignored is refused.
CREATE FUNCTION {schema}.batch_of(items json, known text[])
RETURNS TABLE (n integer, place text, members text[], vals json[]) LANGUAGE plpgsql AS $$
DECLARE
  safe   json;
  hidden text;
BEGIN
  SELECT w.safe, w.hidden INTO safe, hidden FROM {schema}.without_nul(items, 'items') AS w;
  IF safe IS NULL OR json_typeof(safe) <> 'array' THEN
    PERFORM {schema}.bad_input('items must be an array', 'give an array of objects');
  END IF;
  FOR n, members, vals IN
    SELECT a.o, array_agg(e.key), array_agg(CASE hidden WHEN '' THEN e.value
                                            ELSE replace(e.value::text, hidden, chr(92) || 'u0000')::json END)
    FROM json_array_elements(safe) WITH ORDINALITY AS a(item, o)
    LEFT JOIN LATERAL json_each(CASE json_typeof(a.item) WHEN 'object' THEN a.item END) AS e ON true
    GROUP BY a.o ORDER BY a.o
  LOOP
    place := 'item ' || n || ': ';
    IF members = '{NULL}' THEN
      PERFORM {schema}.bad_input(place || 'this is not an object',
                                 'give an object with ' || array_to_string(known, ', '));
    ELSIF NOT members <@ known THEN
      PERFORM {schema}.bad_input(place || 'there is a member that is not known', 'known are ' ||
                                 array_to_string(known, ', '));
    ELSIF (SELECT count(DISTINCT m) FROM unnest(members) AS m) < cardinality(members) THEN
      PERFORM {schema}.bad_input(place || 'there is a member twice');
    END IF;
    RETURN NEXT;
  END LOOP;
END
$$;

CREATE FUNCTION {schema}.member_of(members text[], vals json[], name text) RETURNS json LANGUAGE sql IMMUTABLE AS $$
  SELECT vals[array_position(members, name)]
$$;

-- Enqueue many in one round trip: an array of objects with the names of enqueue()'s arguments. Each is decided on its
-- own; bad input in one refuses the call. delay is seconds or an interval's text, at a time with its zone.
CREATE FUNCTION {schema}.enqueue_many(items json, environment text DEFAULT NULL)
RETURNS TABLE (n integer, delivery_id text, decided text) LANGUAGE plpgsql AS $$
DECLARE
  batch record;
BEGIN
  WITH job AS MATERIALIZED (
    SELECT b.n, d.*
    FROM {schema}.batch_of(items, '{handler, payload, key, tenant, scope, destination, delay, at, priority, policy}')
           AS b,
         LATERAL {schema}.delivery_of(
           {schema}.text_of({schema}.member_of(b.members, b.vals, 'handler'), b.place || 'handler'),
           {schema}.member_of(b.members, b.vals, 'payload'),
           {schema}.member_of(b.members, b.vals, 'key'),
           coalesce({schema}.text_of({schema}.member_of(b.members, b.vals, 'tenant'), b.place || 'tenant'), 'default'),
           {schema}.text_of({schema}.member_of(b.members, b.vals, 'scope'), b.place || 'scope'),
           {schema}.text_of({schema}.member_of(b.members, b.vals, 'destination'), b.place || 'destination'),
           {schema}.interval_of({schema}.member_of(b.members, b.vals, 'delay'), b.place || 'delay'),
           {schema}.instant_of({schema}.member_of(b.members, b.vals, 'at'), b.place || 'at'),
           {schema}.priority_of({schema}.member_of(b.members, b.vals, 'priority'), b.place),
           {schema}.member_of(b.members, b.vals, 'policy'), b.place) AS d
  ), kinds AS MATERIALIZED (
    SELECT j.kind, row_number() OVER (ORDER BY min(j.n))::integer AS k FROM job AS j GROUP BY j.kind
  ), sized AS (
    SELECT j.*, k.k, sum(octet_length(j.body)) OVER (ORDER BY j.n)::integer AS stop
    FROM job AS j JOIN kinds AS k USING (kind)
  )
  SELECT (SELECT '[' || string_agg(k.kind, ',' ORDER BY k.k) || ']' FROM kinds AS k) AS kinds,
         array_agg(s.k ORDER BY s.n) AS kind, array_agg(s.n ORDER BY s.n) AS calls,
         json_agg(s.key_shown ORDER BY s.n)::text AS keys, array_agg(s.id ORDER BY s.n) AS ids,
         string_agg(s.id, decode('', 'hex') ORDER BY s.n) AS id_bytes,
         string_agg(s.hash, decode('', 'hex') ORDER BY s.n) AS hashes,
         string_agg(s.body, decode('', 'hex') ORDER BY s.n) AS bodies, array_agg(s.stop ORDER BY s.n) AS ends,
         coalesce((SELECT json_object_agg(p.policy_version, p.spec)
                   FROM (SELECT DISTINCT j.policy_version, j.spec FROM job AS j WHERE j.spec IS NOT NULL) AS p),
                  '{}')::text AS policies
  INTO batch FROM sized AS s;
  IF batch.calls IS NOT NULL THEN
    RETURN QUERY
    SELECT a.ord, {schema}.to_text('dlv', batch.ids[a.ord]), a.decided
    FROM {schema}.accept_1(environment, batch.kinds, batch.kind, batch.calls, batch.keys, batch.id_bytes, batch.hashes,
                           batch.bodies, batch.ends, batch.policies, 'sql', {schema}.producer(),
                           {schema}.wake()) AS a
    ORDER BY a.ord;
  END IF;
END
$$;

-- --- publish ---------------------------------------------------------------------------------------------------------

-- The bytes of an event: of a JSON value its canonical JSON, and given bytes as they are. JSON bytes are checked.
CREATE FUNCTION {schema}.body_of(payload json, body bytea, is_json boolean, place text) RETURNS bytea
LANGUAGE plpgsql AS $$
DECLARE
  value json;
BEGIN
  IF (payload IS NULL) = (body IS NULL) THEN
    PERFORM {schema}.bad_input(place || 'give payload or body, one of the two',
                               'payload is a JSON value; body is bytes, sent as they are');
  ELSIF payload IS NOT NULL THEN
    RETURN {schema}.utf8({schema}.canonical_json(payload, place || 'the payload'));
  ELSIF is_json THEN
    BEGIN
      value := convert_from(body, 'UTF8')::json;
    EXCEPTION WHEN character_not_in_repertoire OR invalid_text_representation OR statement_too_complex THEN
      PERFORM {schema}.bad_input(place || 'the body is not JSON in UTF-8', 'send JSON, or say another content_type');
    END;
    PERFORM {schema}.canonical_json(value, place || 'the body', false);
  END IF;
  RETURN body;
END
$$;

CREATE FUNCTION {schema}.event_of(event_type text, payload json, event_id json, tenant text, scope text,
                                  content_type text, occurred_at timestamptz, body bytea, place text,
                                  OUT head text, OUT id bytea, OUT hash bytea, OUT bytes bytea)
LANGUAGE plpgsql AS $$
DECLARE
  media text := lower(btrim(split_part(content_type, ';', 1)));
BEGIN
  PERFORM {schema}.check_event_type(event_type, place || 'event_type');
  PERFORM {schema}.check_label(tenant, place || 'tenant');
  IF scope IS NOT NULL THEN
    PERFORM {schema}.check_label(scope, place || 'scope');
  END IF;
  IF content_type IS NULL OR length(content_type) > 200 OR content_type COLLATE "C" !~ '^[ -~]*/[ -~]*$' THEN
    PERFORM {schema}.bad_input(place || 'the content type is not one', 'for example application/json');
  END IF;
  bytes := {schema}.body_of(payload, body, media = 'application/json' OR right(media, 5) = '+json', place);
  PERFORM {schema}.check_size(octet_length(bytes), place || 'the payload');
  id := {schema}.event_id(tenant, {schema}.key_of(event_id, place || 'event_id'));
  hash := {schema}.payload_hash(content_type, bytes);
  head := json_build_object('key', {schema}.key_text(event_id), 'type', event_type, 'tenant', tenant, 'scope', scope,
    'content_type', content_type, 'envelope_version', 1,
    'occurred_at', {schema}.instant_us(occurred_at, place || 'occurred_at'))::text;
END
$$;

CREATE FUNCTION {schema}.delivery_texts(ids bytea[]) RETURNS text[] LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
  RETURN ARRAY(SELECT {schema}.to_text('dlv', u.id) FROM unnest(ids) WITH ORDINALITY AS u(id, o) ORDER BY u.o);
END
$$;

CREATE TYPE {schema}.publication AS (event_id text, decided text, deliveries text[]);
CREATE TYPE {schema}.numbered_publication AS (n integer, event_id text, decided text, deliveries text[]);

-- Publish one event to every destination of the tenant that subscribes to its type. The first publish freezes the
-- deliveries; a repeat returns them. decided as in enqueue().
CREATE FUNCTION {schema}.publish(event_type text, payload json DEFAULT NULL, event_id json DEFAULT NULL,
                                 tenant text DEFAULT 'default', scope text DEFAULT NULL,
                                 content_type text DEFAULT 'application/json', occurred_at timestamptz DEFAULT NULL,
                                 environment text DEFAULT NULL, body bytea DEFAULT NULL)
RETURNS SETOF {schema}.publication LANGUAGE plpgsql ROWS 1 AS $$
DECLARE
  event record;
BEGIN
  event := {schema}.event_of(event_type, payload, event_id, tenant, scope, content_type, occurred_at, body, '');
  RETURN QUERY
  SELECT {schema}.to_text('evt', event.id), p.decided,
         {schema}.delivery_texts(p.delivery_ids)
  FROM {schema}.publish_1(environment, '[' || event.head || ']', event.id, event.hash, event.bytes,
                          ARRAY[octet_length(event.bytes)], '{1}', 'sql', {schema}.producer(),
                          {schema}.wake()) AS p;
END
$$;

-- Publish many in one round trip: an array of objects with the names of publish()'s arguments. body is text there.
CREATE FUNCTION {schema}.publish_many(items json, environment text DEFAULT NULL)
RETURNS SETOF {schema}.numbered_publication LANGUAGE plpgsql AS $$
DECLARE
  batch record;
BEGIN
  SELECT '[' || string_agg(s.head, ',' ORDER BY s.n) || ']' AS heads, array_agg(s.n ORDER BY s.n) AS calls,
         array_agg(s.id ORDER BY s.n) AS ids, string_agg(s.id, decode('', 'hex') ORDER BY s.n) AS id_bytes,
         string_agg(s.hash, decode('', 'hex') ORDER BY s.n) AS hashes,
         string_agg(s.bytes, decode('', 'hex') ORDER BY s.n) AS bodies, array_agg(s.stop ORDER BY s.n) AS ends
  INTO batch
  FROM (
    SELECT b.n, e.*, sum(octet_length(e.bytes)) OVER (ORDER BY b.n)::integer AS stop
    FROM {schema}.batch_of(items, '{event_type, payload, event_id, tenant, scope, content_type, occurred_at, body}')
           AS b,
         LATERAL {schema}.event_of(
           {schema}.text_of({schema}.member_of(b.members, b.vals, 'event_type'), b.place || 'event_type'),
           {schema}.member_of(b.members, b.vals, 'payload'),
           {schema}.member_of(b.members, b.vals, 'event_id'),
           coalesce({schema}.text_of({schema}.member_of(b.members, b.vals, 'tenant'), b.place || 'tenant'), 'default'),
           {schema}.text_of({schema}.member_of(b.members, b.vals, 'scope'), b.place || 'scope'),
           coalesce({schema}.text_of({schema}.member_of(b.members, b.vals, 'content_type'), b.place || 'content_type'),
                    'application/json'),
           {schema}.instant_of({schema}.member_of(b.members, b.vals, 'occurred_at'), b.place || 'occurred_at'),
           {schema}.bytes_of({schema}.member_of(b.members, b.vals, 'body'), b.place || 'body'), b.place) AS e
  ) AS s;
  IF batch.calls IS NOT NULL THEN
    RETURN QUERY
    SELECT p.ord, {schema}.to_text('evt', batch.ids[p.ord]), p.decided,
           {schema}.delivery_texts(p.delivery_ids)
    FROM {schema}.publish_1(environment, batch.heads, batch.id_bytes, batch.hashes, batch.bodies, batch.ends,
                            batch.calls, 'sql', {schema}.producer(), {schema}.wake()) AS p
    ORDER BY p.ord;
  END IF;
END
$$;
