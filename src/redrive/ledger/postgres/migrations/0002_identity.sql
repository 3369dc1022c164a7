-- The derivation of identities (contract 2.1, domain/identity.py), so that SQL alone derives what Python derives.
-- tests/data/identity_vectors.json holds for both. No text here holds a backslash: chr(92) is one, and means the same
-- whatever standard_conforming_strings says.

-- --- the encoding ----------------------------------------------------------------------------------------------------

-- The bytes of a text. convert_to() is not immutable, and would keep every function below from being inlined.
CREATE FUNCTION {schema}.utf8(value text) RETURNS bytea LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE AS $$
  SELECT decode(replace(value COLLATE "C", chr(92), chr(92) || chr(92)), 'escape')
$$;

-- tag, length (8 bytes, big-endian), content.
CREATE FUNCTION {schema}.item(tag "char", content bytea) RETURNS bytea LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
  SELECT decode(tag::text, 'escape') || int8send(octet_length(content)::bigint) || content
$$;

CREATE FUNCTION {schema}.part(value text) RETURNS bytea LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
  SELECT CASE WHEN value IS NULL THEN {schema}.item('n', decode('', 'hex'))
              ELSE {schema}.item('s', {schema}.utf8(value)) END
$$;

CREATE FUNCTION {schema}.part(value boolean) RETURNS bytea LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
  SELECT CASE WHEN value IS NULL THEN {schema}.item('n', decode('', 'hex'))
              ELSE {schema}.item('o', decode(CASE WHEN value THEN '01' ELSE '00' END, 'hex')) END
$$;

CREATE FUNCTION {schema}.part(value bytea) RETURNS bytea LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
  SELECT CASE WHEN value IS NULL THEN {schema}.item('n', decode('', 'hex')) ELSE {schema}.item('b', value) END
$$;

CREATE FUNCTION {schema}.part(value uuid) RETURNS bytea LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
  SELECT CASE WHEN value IS NULL THEN {schema}.item('n', decode('', 'hex'))
              ELSE {schema}.item('u', uuid_send(value)) END
$$;

-- Bad input. What, and what to do about it.
CREATE FUNCTION {schema}.bad_input(what text, advice text DEFAULT NULL) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  IF advice IS NULL THEN
    RAISE EXCEPTION 'redrive: %', what USING ERRCODE = 'invalid_parameter_value';
  END IF;
  RAISE EXCEPTION 'redrive: %', what USING ERRCODE = 'invalid_parameter_value', HINT = advice;
END
$$;

-- An integer of up to 256 bits; any integer type fits.
CREATE FUNCTION {schema}.part(value numeric) RETURNS bytea LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
BEGIN
  IF value IS NULL THEN
    RETURN {schema}.item('n', decode('', 'hex'));
  END IF;
  IF value = 'NaN' OR value <> trunc(value) THEN
    PERFORM {schema}.bad_input('a number in a key must be an integer', 'give a fraction as text');
  END IF;
  IF abs(value) >= 115792089237316195423570985008687907853269984665640564039457584007913129639936 THEN
    PERFORM {schema}.bad_input('an integer key part is limited to 256 bits', 'give it as text');
  END IF;
  RETURN {schema}.item('i', {schema}.utf8(trunc(value)::text));
END
$$;

-- A part made of parts: tuple(part('order'), part(1001)).
CREATE FUNCTION {schema}.tuple(VARIADIC parts bytea[]) RETURNS bytea LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
DECLARE
  content bytea := decode('', 'hex');
  part    bytea;
BEGIN
  FOREACH part IN ARRAY parts LOOP
    content := content || part;
  END LOOP;
  RETURN {schema}.item('l', content);
END
$$;

-- --- what is derived -------------------------------------------------------------------------------------------------

-- The 16-byte ID of what the encoded parts, end to end, describe. The preamble is 'redrive' and the byte 1.
CREATE FUNCTION {schema}.derive(kind text, parts bytea) RETURNS bytea LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
  SELECT substr(sha256(decode('7265647269766501', 'hex') || {schema}.item('s', {schema}.utf8(kind)) || parts), 1, 16)
$$;

-- key: one encoded tuple, as key_of() and tuple() make it.
CREATE FUNCTION {schema}.delivery_id(handler text, tenant text, key bytea) RETURNS bytea
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
  SELECT {schema}.derive('delivery', {schema}.item('s', {schema}.utf8(handler)) ||
                                     {schema}.item('s', {schema}.utf8(tenant)) || key)
$$;

CREATE FUNCTION {schema}.event_id(tenant text, key bytea) RETURNS bytea LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
  SELECT {schema}.derive('event', {schema}.item('s', {schema}.utf8(tenant)) || key)
$$;

-- The delivery of one event to one destination. Runs once for each delivery of a publish: the lengths are written out,
-- since an item within an item would build the inner bytes twice.
CREATE FUNCTION {schema}.webhook_delivery_id(tenant text, event_id bytea, destination text) RETURNS bytea
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
  SELECT {schema}.derive('delivery', {schema}.item('s', decode('776562686f6f6b', 'hex')) ||
    {schema}.item('s', {schema}.utf8(tenant)) ||
    decode('6c', 'hex') || int8send(18 + octet_length(event_id)::bigint + octet_length(destination)) ||
    {schema}.item('b', event_id) || {schema}.item('s', {schema}.utf8(destination)))
$$;

-- One generation (a replay) of a delivery, and one reservation of it.
CREATE FUNCTION {schema}.replay_id(delivery_id bytea, generation bigint) RETURNS bytea
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
  SELECT {schema}.derive('generation', {schema}.item('b', delivery_id) ||
                                       {schema}.item('i', decode(generation::text, 'escape')))
$$;

CREATE FUNCTION {schema}.attempt_id(delivery_id bytea, fence bigint) RETURNS bytea
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
  SELECT {schema}.derive('attempt', {schema}.item('b', delivery_id) ||
                                    {schema}.item('i', decode(fence::text, 'escape')))
$$;

-- The first 63 bits of an ID.
CREATE FUNCTION {schema}.number_of(id bytea) RETURNS bigint LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
  SELECT ('x' || encode(substr(id, 1, 8), 'hex'))::bit(64)::bigint >> 1 & 9223372036854775807
$$;

CREATE FUNCTION {schema}.route_of(handler text, envelope_version integer) RETURNS bigint
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
  SELECT {schema}.number_of({schema}.derive('route', {schema}.item('s', {schema}.utf8(handler)) ||
                                                     {schema}.item('i', decode(envelope_version::text, 'escape'))))
$$;

CREATE FUNCTION {schema}.flow_of(handler text, envelope_version integer, destination text, tenant text) RETURNS bigint
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
  SELECT {schema}.number_of({schema}.derive('flow', {schema}.item('s', {schema}.utf8(handler)) ||
                                                    {schema}.item('i', decode(envelope_version::text, 'escape')) ||
                                                    {schema}.item('s', {schema}.utf8(destination)) ||
                                                    {schema}.item('s', {schema}.utf8(tenant))))
$$;

CREATE FUNCTION {schema}.payload_hash(content_type text, payload bytea) RETURNS bytea
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
  SELECT sha256({schema}.utf8(content_type) || decode('00', 'hex') || payload)
$$;

-- Whether an event filter (domain/values.py, EventFilter) wants the event type. As many dots on both sides leave none
-- for a % to swallow, so LIKE compares segment by segment; an open filter (.**) without another * is a prefix.
CREATE FUNCTION {schema}.filter_matches(filter text, event_type text) RETURNS boolean
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
  SELECT CASE
    WHEN strpos(filter COLLATE "C", '*') = 0 THEN filter COLLATE "C" = event_type COLLATE "C"
    WHEN filter COLLATE "C" IN ('*', '**') THEN true
    WHEN right(filter, 3) COLLATE "C" <> '.**' THEN
      length(replace(filter COLLATE "C", '.', '')) - length(filter)
        = length(replace(event_type COLLATE "C", '.', '')) - length(event_type)
      AND event_type COLLATE "C" LIKE replace(replace(filter COLLATE "C", '_', '!_'), '*', '%') ESCAPE '!'
    WHEN strpos(left(filter, -2) COLLATE "C", '*') = 0 THEN
      left(event_type, length(filter) - 2) COLLATE "C" = left(filter, -2) COLLATE "C"
    ELSE
      event_type COLLATE "C"
        ~ ('^' || replace(replace(left(filter, -2) COLLATE "C", '.', '[.]'), '*', '[^.]*'))
    END
$$;

-- --- IDs as text -----------------------------------------------------------------------------------------------------

-- prefix, _ and 26 characters of Crockford's base32, lower case, for 16 bytes: two zero bits and then the ID's. In
-- PL/pgSQL, whose plan is kept: an SQL function that cannot be inlined is planned again by every statement.
CREATE FUNCTION {schema}.to_text(prefix text, id bytea) RETURNS text
LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE AS $$
DECLARE
  padded bytea := decode('00', 'hex') || id || decode('00', 'hex');
  result text := prefix || '_';
BEGIN
  FOR at IN 6..131 BY 5 LOOP
    result := result || substr('0123456789abcdefghjkmnpqrstvwxyz',
      ((get_byte(padded, at / 8) << 8 | get_byte(padded, at / 8 + 1)) >> 11 - at % 8 & 31) + 1, 1);
  END LOOP;
  RETURN result;
END
$$;

-- The 16 bytes behind the text. Either case, and Crockford's look-alikes: o is 0, i and l are 1.
CREATE FUNCTION {schema}.from_text(prefix text, id text) RETURNS bytea
LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE AS $$
DECLARE
  tail text := translate(lower(substr(id, length(prefix) + 2) COLLATE "C"), 'oil', '011');
  bits text;
BEGIN
  IF lower(left(id, length(prefix) + 1) COLLATE "C") <> prefix || '_' OR tail !~ '^[0-9a-hjkmnp-tv-z]{26}$'
     OR left(tail, 1) > '7' THEN
    PERFORM {schema}.bad_input('this is not a ' || prefix || '_ ID',
                               'expected is ' || prefix || '_ and 26 characters of base32');
  END IF;
  SELECT string_agg((strpos('0123456789abcdefghjkmnpqrstvwxyz', substr(tail, n, 1)) - 1)::bit(5)::text, '' ORDER BY n)
    INTO bits FROM generate_series(1, 26) AS n;
  RETURN int8send(substr(bits, 3, 64)::bit(64)::bigint) || int8send(substr(bits, 67, 64)::bit(64)::bigint);
END
$$;

-- --- keys as JSON ----------------------------------------------------------------------------------------------------

-- The bytes of a JSON string, given with its quotes. U+0000 is kept (text cannot hold it, so it goes around text).
CREATE FUNCTION {schema}.json_string_bytes(token text, what text DEFAULT 'the payload') RETURNS bytea
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
DECLARE
  inner_text text := substr(token, 2, length(token) - 2);
  slash      text := chr(92);
BEGIN
  IF strpos(inner_text, slash) = 0 THEN
    RETURN {schema}.utf8(inner_text);
  END IF;
  -- From here on every backslash begins an escape.
  inner_text := replace(inner_text, slash || slash, slash || 'u005c');
  IF inner_text ~* replace('@@ud[89ab]..(?!@@ud[c-f])|(?<!@@ud[89ab]..)@@ud[c-f]', '@', slash) THEN
    PERFORM {schema}.bad_input(what || ' holds a lone surrogate, which is not text');
  END IF;
  RETURN (SELECT string_agg({schema}.utf8(('"' || piece || '"')::json #>> '{}'), decode('00', 'hex') ORDER BY n)
          FROM unnest(string_to_array(inner_text, slash || 'u0000')) WITH ORDINALITY AS u(piece, n));
END
$$;

-- JSON's white space, which json keeps around a value.
CREATE FUNCTION {schema}.bare(value json) RETURNS text LANGUAGE sql STABLE STRICT PARALLEL SAFE AS $$
  SELECT btrim(value::text, ' ' || chr(9) || chr(10) || chr(13))
$$;

CREATE FUNCTION {schema}.key_part(value json, depth integer) RETURNS bytea
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
DECLARE
  token text := {schema}.bare(value);
BEGIN
  CASE left(token, 1)
    WHEN '"' THEN
      RETURN {schema}.item('s', {schema}.json_string_bytes(token, 'a key part'));
    WHEN 'n' THEN
      RETURN {schema}.item('n', decode('', 'hex'));
    WHEN 't', 'f' THEN
      RETURN {schema}.part(token::boolean);
    WHEN '[' THEN
      IF depth > 100 THEN
        PERFORM {schema}.bad_input('a key is nested too deeply');
      END IF;
      RETURN {schema}.item('l', coalesce(
        (SELECT string_agg({schema}.key_part(p, depth + 1), decode('', 'hex') ORDER BY n)
         FROM json_array_elements(value) WITH ORDINALITY AS a(p, n)), decode('', 'hex')));
    WHEN '{' THEN
      PERFORM {schema}.bad_input('a key part cannot be an object',
                                 'use strings, integers, booleans, null or arrays of these');
    ELSE
      IF token !~ '^-?[0-9]+$' THEN
        PERFORM {schema}.bad_input('a number in a key must be an integer, without a fraction or an exponent',
                                   'give other numbers as strings');
      END IF;
      IF length(token) > 79 THEN
        PERFORM {schema}.bad_input('an integer key part is limited to 256 bits', 'give it as a string');
      END IF;
      RETURN {schema}.part(token::numeric);
  END CASE;
END
$$;

-- A key as other languages give it, encoded: a string, an integer, a boolean, or an array of these, null and arrays.
CREATE FUNCTION {schema}.key_of(key json, param text DEFAULT 'key') RETURNS bytea
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
DECLARE
  token   text := {schema}.bare(key);
  parts   text[];
  encoded bytea;
BEGIN
  IF left(token, 1) = '[' THEN
    parts := ARRAY(SELECT {schema}.bare(p) FROM json_array_elements(key) AS p);
  ELSE
    parts := ARRAY[coalesce(token, 'null')];
  END IF;
  IF NOT EXISTS (SELECT FROM unnest(parts) AS p WHERE p NOT IN ('null', '""') AND NOT p ~ '^[[][[:space:]]*[]]$') THEN
    PERFORM {schema}.bad_input(param || ' is missing',
      'give the work its natural identity; for work that has none, a random UUID as a string');
  END IF;
  encoded := CASE WHEN left(token, 1) = '[' THEN {schema}.key_part(key, 1)
                  ELSE {schema}.item('l', {schema}.key_part(key, 1)) END;
  IF octet_length(encoded) > 4096 THEN
    PERFORM {schema}.bad_input(param || ' is longer than 4096 encoded bytes', 'a longer one is a payload in disguise');
  END IF;
  RETURN encoded;
END
$$;

-- --- canonical JSON --------------------------------------------------------------------------------------------------
-- What domain/values.py writes for an equal value, so that hashes agree: keys by code point, no white space, strings
-- escaped no more than they must be, floats as Python prints them. The type is json, since jsonb has no U+0000 and does
-- not tell 1 from 1.0 as Python does.

-- A number with a fraction or an exponent: the shortest digits that read back as the same double. PostgreSQL's own are
-- not always the shortest: it never prints a decimal that is exactly half way between two doubles, such as 1e23.
CREATE FUNCTION {schema}.canonical_float(token text, what text) RETURNS text LANGUAGE plpgsql
SET extra_float_digits = 1 AS $$
DECLARE
  sign   text := CASE WHEN left(token, 1) = '-' THEN '-' ELSE '' END;
  number float8;
  shown  text;
  digits text;
  power  numeric;
  shift  integer;                          -- the number is 0.digits times ten to this
BEGIN
  BEGIN
    number := abs(token::float8);
  EXCEPTION WHEN numeric_value_out_of_range THEN
    -- Zero or beyond all doubles, by the place of the first digit that counts.
    SELECT ltrim(m[1], '0'), coalesce(m[2], ''), coalesce(m[3], '0')::numeric INTO shown, digits, power
    FROM regexp_match(token, '^-?([0-9]+)(?:[.]([0-9]+))?(?:[eE]([-+]?[0-9]+))?$') AS m;
    IF power + (CASE shown WHEN '' THEN length(ltrim(digits, '0')) - length(digits) ELSE length(shown) END) < 0 THEN
      RETURN sign || '0.0';
    END IF;
    PERFORM {schema}.bad_input(what || ' holds a number that is not finite as a double', 'give it as a string');
  END;
  IF number = 0 THEN
    RETURN sign || '0.0';
  END IF;
  shown := number::text;
  -- From 1e40 on, no 17 digits are half way: five to the power that they would need does not fit into a double.
  IF number < 1e40 AND length(ltrim(translate(split_part(shown, 'e', 1), '.', ''), '0')) > 15 THEN
    IF number::numeric::float8 = number THEN    -- the cast to numeric keeps 15 digits
      shown := number::numeric::text;
    ELSE
      digits := rtrim(ltrim(translate(split_part(shown, 'e', 1), '.', ''), '0'), '0');
      IF length(digits) = 17 AND shown ~ 'e' THEN
        digits := (digits::numeric / 10)::numeric(17, 0)::text;
        digits := left(digits, 1) || '.' || substr(digits, 2) || 'e' || split_part(shown, 'e', 2);
        IF digits::float8 = number THEN
          shown := digits;
        END IF;
      END IF;
    END IF;
  END IF;
  digits := split_part(shown, 'e', 1);
  shift := length(split_part(digits, '.', 1)) + coalesce(nullif(split_part(shown, 'e', 2), '')::integer, 0);
  digits := translate(digits, '.', '');
  shift := shift - (length(digits) - length(ltrim(digits, '0')));
  digits := rtrim(ltrim(digits, '0'), '0');
  IF shift BETWEEN -3 AND 16 THEN
    RETURN sign || CASE
      WHEN shift <= 0 THEN '0.' || repeat('0', -shift) || digits
      WHEN shift >= length(digits) THEN rpad(digits, shift, '0') || '.0'
      ELSE left(digits, shift) || '.' || substr(digits, shift + 1) END;
  END IF;
  RETURN sign || left(digits, 1) || CASE WHEN length(digits) > 1 THEN '.' || substr(digits, 2) ELSE '' END
    || 'e' || CASE WHEN shift > 0 THEN '+' ELSE '-' END
    || lpad(abs(shift - 1)::text, greatest(2, length(abs(shift - 1)::text)), '0');
END
$$;

-- One value, within depth others. hidden stands for U+0000, which text cannot hold. unique_keys: refuse a repeated key.
CREATE FUNCTION {schema}.canonical_value(value json, depth integer, hidden text, unique_keys boolean, what text)
RETURNS text LANGUAGE plpgsql AS $$
DECLARE
  token  text := {schema}.bare(value);
  slash  text := chr(92);
  result text;
  keys   bigint;
  names  bigint;
BEGIN
  CASE left(token, 1)
    WHEN '"' THEN
      RETURN CASE WHEN strpos(token, slash) = 0 THEN token ELSE to_json(token::json #>> '{}')::text END;
    WHEN 't', 'f', 'n' THEN
      RETURN token;
    WHEN '{', '[' THEN
      IF depth >= 64 THEN
        PERFORM {schema}.bad_input(what || ' is nested deeper than 64 levels', 'flatten it, or send a reference to it');
      END IF;
      -- The plain values are written here: a call for each would be most of the work.
      IF left(token, 1) = '[' THEN
        SELECT string_agg(CASE WHEN strpos(v, slash) = 0 AND v ~ '^("|t|f|n|[1-9][0-9]{0,99}$)' THEN v
                               ELSE {schema}.canonical_value(v::json, depth + 1, hidden, unique_keys, what) END,
                          ',' ORDER BY n)
        INTO result
        FROM json_array_elements(value) WITH ORDINALITY AS a(j, n), LATERAL (SELECT {schema}.bare(j)) AS b(v);
        RETURN '[' || coalesce(result, '') || ']';
      END IF;
      SELECT string_agg(to_json(k)::text || ':' ||
                        CASE WHEN strpos(v, slash) = 0 AND v ~ '^("|t|f|n|[1-9][0-9]{0,99}$)' THEN v
                             ELSE {schema}.canonical_value(v::json, depth + 1, hidden, unique_keys, what) END,
                        ',' ORDER BY decode(replace(replace(k, slash, slash || slash), hidden, slash || '000'),
                                            'escape')),
             count(*), count(DISTINCT k COLLATE "C")
      INTO result, keys, names
      FROM json_each(value) AS e(k, j), LATERAL (SELECT {schema}.bare(j)) AS b(v);
      IF names < keys AND unique_keys THEN
        PERFORM {schema}.bad_input(what || ' has an object with a key twice',
                                   'two readers may disagree on which counts');
      END IF;
      RETURN '{' || coalesce(result, '') || '}';
    ELSE
      IF token ~ '[.eE]' THEN
        RETURN {schema}.canonical_float(token, what);
      END IF;
      -- 8192 bits.
      IF length(token) > 2466 AND length(ltrim(token, '-')) > 2466 THEN
        PERFORM {schema}.bad_input(what || ' holds an integer of too many digits', 'give it as a string');
      END IF;
      RETURN CASE token WHEN '-0' THEN '0' ELSE token END;
  END CASE;
END
$$;

-- The text with each U+0000 escape replaced by what stands for it, and that; json functions refuse such escapes.
-- The stand-in is the text's own SHA-256, which the text cannot hold.
CREATE FUNCTION {schema}.without_nul(value json, what text, OUT safe json, OUT hidden text)
LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
  slash text := chr(92);
  plain text := value::text;
BEGIN
  safe := value;
  hidden := '';
  IF strpos(plain, slash || 'u') = 0 THEN
    RETURN;
  END IF;
  -- From here on every backslash begins an escape.
  plain := replace(plain, slash || slash, slash || 'u005c');
  IF plain ~* replace('@@ud[89ab]..(?!@@ud[c-f])|(?<!@@ud[89ab]..)@@ud[c-f]', '@', slash) THEN
    PERFORM {schema}.bad_input(what || ' holds a lone surrogate, which is not text', 'send valid Unicode');
  END IF;
  IF strpos(plain, slash || 'u0000') > 0 THEN
    hidden := encode(sha256({schema}.utf8(plain)), 'hex');
    safe := replace(plain, slash || 'u0000', hidden)::json;
  END IF;
END
$$;

CREATE FUNCTION {schema}.canonical_json(value json, what text DEFAULT 'the payload', unique_keys boolean DEFAULT true)
RETURNS text LANGUAGE plpgsql AS $$
DECLARE
  safe   json;
  hidden text;
  result text;
BEGIN
  IF value IS NULL THEN
    RETURN 'null';
  END IF;
  SELECT w.safe, w.hidden INTO safe, hidden FROM {schema}.without_nul(value, what) AS w;
  result := {schema}.canonical_value(safe, 0, hidden, unique_keys, what);
  RETURN CASE hidden WHEN '' THEN result ELSE replace(result, hidden, chr(92) || 'u0000') END;
END
$$;
