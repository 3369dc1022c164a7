-- What the public functions check, once for all of them, as domain/values.py and domain/policy.py do. Bad input raises
-- 22023 (invalid_parameter_value) with what is wrong, where, and what to do.

-- --- checks ----------------------------------------------------------------------------------------------------------

-- A tenant or scope: 1 to 200 characters; no control characters, line separators or bidirectional overrides, no white
-- space at either end.
CREATE FUNCTION {schema}.check_label(value text, param text) RETURNS void LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
  spaces   text := '[ ' || chr(160) || chr(5760) || chr(8192) || '-' || chr(8202) || chr(8239) || chr(8287)
                        || chr(12288) || ']';
  controls text := '[' || chr(1) || '-' || chr(31) || chr(127) || '-' || chr(159) || chr(8232) || '-' || chr(8238)
                       || chr(8294) || '-' || chr(8297) || ']';
BEGIN
  IF value COLLATE "C" ~ '^[A-Za-z0-9_.:-]{1,200}$' THEN
    RETURN;
  ELSIF value IS NULL OR value = '' THEN
    PERFORM {schema}.bad_input(param || ' must not be empty', 'give 1 to 200 characters');
  ELSIF length(value) > 200 THEN
    PERFORM {schema}.bad_input(param || ' is longer than 200 characters', 'give 1 to 200 characters');
  ELSIF value COLLATE "C" ~ controls THEN
    PERFORM {schema}.bad_input(param || ' contains a control character', 'remove it: names are shown to people');
  ELSIF value COLLATE "C" ~ ('^' || spaces || '|' || spaces || '$') THEN
    PERFORM {schema}.bad_input(param || ' begins or ends with white space', 'trim it');
  END IF;
END
$$;

-- A handler's name.
CREATE FUNCTION {schema}.check_slug(value text, param text) RETURNS void LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
  IF value COLLATE "C" ~ '^[A-Za-z0-9_][A-Za-z0-9_.:-]{0,199}$' THEN
    RETURN;
  END IF;
  PERFORM {schema}.check_label(value, param);
  PERFORM {schema}.bad_input(param || ' is not a name',
    'it may hold ASCII letters, digits and _ . : - only, and begins with a letter, digit or _');
END
$$;

CREATE FUNCTION {schema}.check_event_type(value text, param text) RETURNS void LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
  PERFORM {schema}.check_label(value, param);
  IF value COLLATE "C" !~ '^[A-Za-z0-9_-]+([.][A-Za-z0-9_-]+)*$' THEN
    PERFORM {schema}.bad_input(param || ' must be segments of ASCII letters, digits, _ and - joined by full stops',
                               'for example order.paid');
  END IF;
END
$$;

CREATE FUNCTION {schema}.check_size(bytes bigint, what text) RETURNS void LANGUAGE plpgsql STABLE AS $$
DECLARE
  most bigint := coalesce(nullif(current_setting('redrive.max_payload_bytes', true), '')::bigint, 1048576);
BEGIN
  IF bytes > most THEN
    PERFORM {schema}.bad_input(what || ' is ' || bytes || ' bytes, the limit is ' || most,
      'send a reference to the data, or raise the setting redrive.max_payload_bytes');
  END IF;
END
$$;

-- Microseconds since 1970.
CREATE FUNCTION {schema}.instant_us(value timestamptz, param text) RETURNS bigint LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
  IF NOT isfinite(value) THEN
    PERFORM {schema}.bad_input(param || ' is not a point in time', 'give a finite time');
  END IF;
  RETURN (extract(epoch FROM date_trunc('second', value, 'UTC'))::bigint * 1000000
          + extract(microseconds FROM value)::bigint % 1000000);
END
$$;

-- A member of an object as text: null where it is absent or null, refused where it is not text.
CREATE FUNCTION {schema}.text_of(member json, param text) RETURNS text LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
  IF member IS NULL OR json_typeof(member) = 'null' THEN
    RETURN NULL;
  END IF;
  IF json_typeof(member) <> 'string' THEN
    PERFORM {schema}.bad_input(param || ' must be a string');
  END IF;
  RETURN member #>> '{}';
END
$$;

-- An instant in JSON: text that names its zone, so that no session setting decides.
CREATE FUNCTION {schema}.instant_of(member json, param text) RETURNS timestamptz LANGUAGE plpgsql STABLE AS $$
DECLARE
  shown text := {schema}.text_of(member, param);
BEGIN
  IF shown !~* ('^[0-9]{4}-[0-9]{2}-[0-9]{2}[t ][0-9]{2}:[0-9]{2}(:[0-9]{2}([.][0-9]{1,6})?)?'
                || '(z|[+-][0-9]{2}(:?[0-9]{2})?)$') THEN
    PERFORM {schema}.bad_input(param || ' is not a time with a zone', 'for example 2026-01-31T12:00:00Z');
  END IF;
  RETURN shown::timestamptz;
EXCEPTION WHEN datetime_field_overflow OR invalid_datetime_format THEN
  PERFORM {schema}.bad_input(param || ' is not a time', 'for example 2026-01-31T12:00:00Z');
END
$$;

-- A wait in JSON: seconds as a number, or an interval as text.
CREATE FUNCTION {schema}.interval_of(member json, param text) RETURNS interval LANGUAGE plpgsql STABLE AS $$
BEGIN
  IF json_typeof(member) = 'number' THEN
    RETURN make_interval(secs => (member #>> '{}')::float8);
  END IF;
  RETURN {schema}.text_of(member, param)::interval;
EXCEPTION WHEN datetime_field_overflow OR invalid_datetime_format OR interval_field_overflow
               OR numeric_value_out_of_range THEN
  PERFORM {schema}.bad_input(param || ' is not a length of time', 'give seconds, or text such as 15 minutes');
END
$$;

CREATE FUNCTION {schema}.priority_of(member json, place text) RETURNS integer LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
  IF member IS NULL OR json_typeof(member) = 'null' THEN
    RETURN 2;
  ELSIF {schema}.bare(member) !~ '^[0-3]$' THEN
    PERFORM {schema}.bad_input(place || 'priority must be 0, 1, 2 or 3');
  END IF;
  RETURN {schema}.bare(member)::integer;
END
$$;

CREATE FUNCTION {schema}.bytes_of(member json, param text) RETURNS bytea LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
  IF member IS NULL OR json_typeof(member) = 'null' THEN
    RETURN NULL;
  ELSIF json_typeof(member) <> 'string' THEN
    PERFORM {schema}.bad_input(param || ' must be a string', 'give a JSON value as payload');
  END IF;
  RETURN {schema}.json_string_bytes({schema}.bare(member), param);
END
$$;

-- A policy as Policy.spec() prints it; what is left out is as in Policy(). Its version is derived from its contents.
CREATE FUNCTION {schema}.policy_of(given json, param text, OUT spec text, OUT version bigint, OUT max_attempts integer,
                                   OUT max_age bigint) LANGUAGE plpgsql AS $$
DECLARE
  values_of jsonb := '{"base": 1000000, "cap": 900000000, "factor": 2.0, "floor": 0, "jitter": "full",
    "max_age": 86400000000, "max_attempts": 7, "on_unknown": "retry", "retry_after_cap": 86400000000}';
  name      text;
  most      CONSTANT bigint := 316224000000000;    -- 3660 days
BEGIN
  IF json_typeof(given) <> 'object' THEN
    PERFORM {schema}.bad_input(param || ' must be an object',
                               'give the fields of Policy, for example {"max_attempts": 5}');
  END IF;
  FOR name IN SELECT key FROM json_each(given) WHERE NOT values_of ? key LOOP
    PERFORM {schema}.bad_input(param || ' has a field that no policy has', 'the fields are ' ||
      (SELECT string_agg(f, ', ' ORDER BY f COLLATE "C") FROM jsonb_object_keys(values_of) AS f));
  END LOOP;
  values_of := values_of || given::jsonb;
  FOREACH name IN ARRAY ARRAY['base', 'cap', 'floor', 'max_age', 'max_attempts', 'retry_after_cap'] LOOP
    IF jsonb_typeof(values_of -> name) <> 'number' OR values_of ->> name !~ '^-?[0-9]+$' THEN
      PERFORM {schema}.bad_input(param || ': ' || name || ' must be an integer', 'times are microseconds');
    ELSIF (values_of ->> name)::numeric NOT BETWEEN
        (name IN ('max_age', 'max_attempts'))::integer AND
        (CASE name WHEN 'max_attempts' THEN 1000 ELSE most END) THEN
      PERFORM {schema}.bad_input(param || ': ' || name || ' is out of range',
        CASE name WHEN 'max_attempts' THEN 'give 1 to 1000' ELSE 'give at most ten years, in microseconds' END);
    END IF;
  END LOOP;
  IF (values_of ->> 'floor')::bigint > (values_of ->> 'cap')::bigint THEN
    PERFORM {schema}.bad_input(param || ': floor must not be more than cap');
  ELSIF jsonb_typeof(values_of -> 'factor') <> 'number' OR (values_of ->> 'factor')::numeric NOT BETWEEN 1 AND 1000 THEN
    PERFORM {schema}.bad_input(param || ': factor must be 1 to 1000');
  ELSIF coalesce(values_of ->> 'jitter', '') NOT IN ('full', 'equal', 'none') THEN
    PERFORM {schema}.bad_input(param || ': jitter must be full, equal or none');
  ELSIF coalesce(values_of ->> 'on_unknown', '') NOT IN ('retry', 'hold', 'confirm') THEN
    PERFORM {schema}.bad_input(param || ': on_unknown must be retry, hold or confirm');
  END IF;
  values_of := values_of - 'factor';
  spec := (SELECT '{' || string_agg('"' || f.key || '":' || f.value, ',' ORDER BY f.key COLLATE "C") || '}'
           FROM (SELECT n.key, n.value::text FROM jsonb_each(values_of) AS n UNION ALL
                 SELECT 'factor', {schema}.canonical_float(coalesce(given ->> 'factor', '2'), param)) AS f);
  version := {schema}.number_of(sha256({schema}.utf8(spec)));
  max_attempts := (values_of ->> 'max_attempts')::integer;
  max_age := (values_of ->> 'max_age')::bigint;
END
$$;

-- One part, as Python shows it; a nested part as JSON.
CREATE FUNCTION {schema}.shown(token text) RETURNS text LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
  RETURN CASE
    WHEN left(token, 1) <> '"' THEN
      CASE token WHEN 'null' THEN 'None' WHEN 'true' THEN 'True' WHEN 'false' THEN 'False' WHEN '-0' THEN '0'
                 ELSE token END
    WHEN strpos(token, chr(92)) = 0 THEN substr(token, 2, length(token) - 2)
    ELSE token::json #>> '{}' END;
END
$$;

-- A key for people: its parts, joined, 200 characters at most; U+0000, which text cannot hold, as its picture, U+2400.
CREATE FUNCTION {schema}.key_text(key json) RETURNS text LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
  token text := replace(replace({schema}.bare(key), chr(92) || chr(92), chr(92) || 'u005c'),
                        chr(92) || 'u0000', chr(9216));
BEGIN
  IF left(token, 1) <> '[' THEN
    RETURN left({schema}.shown(token), 200);
  END IF;
  RETURN left((SELECT string_agg({schema}.shown({schema}.bare(p)), '/' ORDER BY n)
               FROM json_array_elements(token::json) WITH ORDINALITY AS a(p, n)), 200);
END
$$;

-- Who calls, for the list of repeated enqueues.
CREATE FUNCTION {schema}.producer() RETURNS text LANGUAGE sql STABLE AS $$
  SELECT coalesce(nullif(current_setting('application_name'), ''), host(inet_client_addr()), 'local')
$$;

-- The mode of accept_1 and publish_1: whether a commit wakes idle workers, as the setting redrive.notify says.
CREATE FUNCTION {schema}.wake() RETURNS integer LANGUAGE sql STABLE AS $$
  SELECT CASE WHEN current_setting('redrive.notify', true) = 'on' THEN 2 ELSE 0 END
$$;
