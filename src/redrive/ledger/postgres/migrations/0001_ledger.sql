-- The ledger, as contract 4 splits it: insert-only facts apart from the one narrow, hot, mutable row.
-- Times are bigint microseconds UTC. IDs are the 16 bytes behind dlv_ / evt_ / gen_.

-- Ledger time: the database's clock, not the transaction's start. Tests give theirs in the setting redrive.now.
-- Write it (SELECT clock_us()): a volatile call in a comparison cannot bound an index scan.
CREATE FUNCTION {schema}.clock_us() RETURNS bigint LANGUAGE sql VOLATILE PARALLEL SAFE AS $$
  SELECT coalesce(nullif(current_setting('redrive.now', true), '')::bigint,
                  (extract(epoch FROM clock_timestamp()) * 1000000)::bigint)
$$;

CREATE FUNCTION {schema}.refuse() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  RAISE EXCEPTION 'redrive: %', TG_ARGV[0] USING ERRCODE = 'check_violation';
END
$$;

-- What this schema is. Single row.
CREATE TABLE {schema}.ledger (
  one         smallint NOT NULL PRIMARY KEY DEFAULT 1 CHECK (one = 1),
  environment text     NOT NULL,
  created_at  bigint   NOT NULL,
  registry    bigint   NOT NULL DEFAULT 0   -- another random number with every change of the registry
);

CREATE TABLE {schema}.policy (
  version bigint NOT NULL PRIMARY KEY,      -- derived from the spec
  spec    text   NOT NULL
);

CREATE SEQUENCE {schema}.delivery_seq AS bigint;
CREATE SEQUENCE {schema}.event_seq AS bigint;

-- Outlives the delivery as a tombstone: the only random key.
CREATE TABLE {schema}.identity (
  seq          bigint NOT NULL,
  first_seen   bigint NOT NULL,
  purged_at    bigint,                      -- when retention took the delivery; the row is a tombstone from then on
  delivery_id  bytea  NOT NULL PRIMARY KEY CHECK (length(delivery_id) = 16),
  payload_hash bytea  NOT NULL
);
CREATE INDEX identity_purged ON {schema}.identity (purged_at) WHERE purged_at IS NOT NULL;

CREATE TABLE {schema}.event (
  event_seq        bigint  NOT NULL PRIMARY KEY,
  accepted_at      bigint  NOT NULL,
  occurred_at      bigint,
  purged_at        bigint,                  -- when retention took the payload; the row keeps later duplicates out
  envelope_version integer NOT NULL,
  fan_out          integer NOT NULL,        -- frozen at the first publish
  event_id         bytea   NOT NULL UNIQUE CHECK (length(event_id) = 16),
  event_key        text    NOT NULL,        -- the producer's own event ID, as given
  event_type       text    NOT NULL,
  tenant           text    NOT NULL,
  scope            text,
  content_type     text    NOT NULL,
  payload_hash     bytea   NOT NULL,
  payload          bytea   NOT NULL         -- once, byte for byte
);
CREATE INDEX event_purged ON {schema}.event (purged_at) WHERE purged_at IS NOT NULL;

-- The first entry of a delivery's history: accepted, generation 0.
CREATE TABLE {schema}.delivery (
  seq              bigint   NOT NULL PRIMARY KEY,
  event_seq        bigint,                  -- the payload is the event's ...
  policy_version   bigint   NOT NULL,
  deadline_at      bigint   NOT NULL,       -- the first budget
  first_queued_at  bigint   NOT NULL,
  first_due_at     bigint   NOT NULL,
  max_attempts     integer  NOT NULL,
  envelope_version integer  NOT NULL,
  first_hold       smallint NOT NULL DEFAULT 0,
  delivery_id      bytea    NOT NULL,
  payload_hash     bytea    NOT NULL,
  handler          text     NOT NULL,
  tenant           text     NOT NULL,
  scope            text,
  destination      text     NOT NULL,
  key              text     NOT NULL,
  content_type     text     NOT NULL,
  payload          bytea,                   -- ... or inline
  CHECK ((event_seq IS NULL) <> (payload IS NULL))
);
CREATE INDEX delivery_by_tenant ON {schema}.delivery (tenant, seq);
CREATE INDEX delivery_by_destination ON {schema}.delivery (destination, seq);
CREATE INDEX delivery_by_event ON {schema}.delivery (event_seq) WHERE event_seq IS NOT NULL;

-- The only hot, mutable row. Updates are never HOT (every index is partial on the disposition), so pages are kept full
-- but for a little room, and dead rows are cleared away early.
CREATE TABLE {schema}.delivery_state (
  seq              bigint   NOT NULL PRIMARY KEY,
  route            bigint   NOT NULL,       -- (handler, envelope version): who can execute it
  flow             bigint   NOT NULL,       -- (route, destination, tenant): the unit of fairness
  deadline_at      bigint   NOT NULL,
  available_at     bigint   NOT NULL,
  fence            bigint   NOT NULL,
  leased_until     bigint,
  started_at       bigint,
  leased_by        integer,
  generation       integer  NOT NULL,
  attempt          integer  NOT NULL,
  max_attempts     integer  NOT NULL,
  deferrals        integer  NOT NULL DEFAULT 0,   -- uncharged reservations since the last charged one
  own_faults       integer  NOT NULL DEFAULT 0,   -- of those, the ones that were our own fault, in a row
  lane             smallint NOT NULL,
  priority         smallint NOT NULL,
  disposition      smallint NOT NULL,
  hold             smallint NOT NULL DEFAULT 0,
  ambiguous        smallint NOT NULL DEFAULT 0,
  cancel_requested smallint NOT NULL DEFAULT 0,
  last_category    text,
  -- One constraint: each is prepared anew for every statement, and this table's rows are what every statement changes.
  CONSTRAINT delivery_state_sound CHECK (
    attempt >= 0 AND attempt <= max_attempts AND max_attempts BETWEEN 1 AND 1000
    AND (disposition <> 0 OR attempt < max_attempts)   -- what waits can still start
    AND CASE WHEN disposition = 1
             THEN attempt >= 1 AND leased_by IS NOT NULL AND leased_until IS NOT NULL AND started_at IS NOT NULL
             ELSE leased_by IS NULL AND leased_until IS NULL AND started_at IS NULL END
    AND disposition BETWEEN 0 AND 5 AND fence >= 0 AND generation >= 0 AND lane BETWEEN 0 AND 2
    AND priority BETWEEN 0 AND 3 AND ambiguous IN (0, 1) AND cancel_requested IN (0, 1))
) WITH (fillfactor = 60, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000,
        autovacuum_analyze_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 1);
CREATE INDEX delivery_state_ready ON {schema}.delivery_state (route, priority, available_at, seq)
  WHERE disposition = 0 AND hold = 0;
-- When the reaper has something to do with a live row: its lease ends, or, while it waits, its age does. One index for
-- both, since a reservation writes an entry into every index whose predicate holds.
CREATE INDEX delivery_state_ends ON {schema}.delivery_state
  ((CASE WHEN disposition = 1 THEN leased_until ELSE deadline_at END)) WHERE disposition <= 1;
-- Empty while nothing is held.
CREATE INDEX delivery_state_held ON {schema}.delivery_state (flow) WHERE hold <> 0;

CREATE TABLE {schema}.generation (
  seq            bigint  NOT NULL,
  generation     integer NOT NULL CHECK (generation >= 1),
  parent         integer NOT NULL,
  max_attempts   integer NOT NULL,
  deadline_at    bigint  NOT NULL,
  policy_version bigint  NOT NULL,
  redrive_item   bigint,
  opened_at      bigint  NOT NULL,
  replay_id      bytea   NOT NULL,
  PRIMARY KEY (seq, generation)
);

-- One row for each charged reservation, written when it ends. The open one is on delivery_state.
CREATE TABLE {schema}.attempt (
  seq         bigint   NOT NULL,
  fence       bigint   NOT NULL,
  started_at  bigint   NOT NULL,
  ended_at    bigint   NOT NULL,
  duration    bigint   NOT NULL,            -- microseconds, by the worker's monotonic clock
  retry_after bigint,                       -- microseconds that the target asked for
  next_at     bigint,                       -- the retry that this attempt scheduled
  generation  integer  NOT NULL,
  number      integer  NOT NULL CHECK (number >= 1),
  worker      integer,
  status      integer,
  deferrals   integer  NOT NULL DEFAULT 0,  -- uncharged reservations between the attempt before and this one
  flags       integer  NOT NULL DEFAULT 0,
  outcome     text     NOT NULL,
  category    text     NOT NULL,
  excerpt     text,
  PRIMARY KEY (seq, fence)
);

CREATE TABLE {schema}.dead_letter (
  dead_letter    bigint   NOT NULL GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  seq            bigint   NOT NULL,
  generation     integer  NOT NULL,
  attempts       integer  NOT NULL,
  first_at       bigint,                    -- first and last attempt of the generation
  last_at        bigint,
  policy_version bigint   NOT NULL,
  died_at        bigint   NOT NULL,
  ambiguous      smallint NOT NULL,
  state          text     NOT NULL DEFAULT 'open' CHECK (state IN ('open', 'redriven', 'discarded')),
  handler        text     NOT NULL,
  tenant         text     NOT NULL,
  scope          text,
  destination    text     NOT NULL,
  cause          text     NOT NULL,
  category       text     NOT NULL,
  UNIQUE (seq, generation)
);
CREATE INDEX dead_letter_open ON {schema}.dead_letter (destination, cause, category, dead_letter) WHERE state = 'open';
CREATE INDEX dead_letter_by_tenant ON {schema}.dead_letter (tenant, dead_letter) WHERE state = 'open';

-- What the rows above do not already say.
CREATE TABLE {schema}.transition (
  transition bigint  NOT NULL GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  seq        bigint  NOT NULL,
  at         bigint  NOT NULL,
  fence      bigint  NOT NULL,
  generation integer NOT NULL,
  kind       text    NOT NULL,
  category   text,
  actor      text,
  reason     text
);
CREATE INDEX transition_by_delivery ON {schema}.transition (seq);

-- Enqueues that found the delivery already there: singly up to a bound, then counted. A producer's open transaction
-- must not make another producer wait: rows are appended, and each session counts in a row of its own.
CREATE TABLE {schema}.repeat (
  repeat   bigint NOT NULL GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  seq      bigint NOT NULL,
  at       bigint NOT NULL,
  decided  text   NOT NULL CHECK (decided IN ('duplicate', 'conflict')),
  path     text   NOT NULL,
  producer text   NOT NULL
);
CREATE INDEX repeat_by_delivery ON {schema}.repeat (seq);

CREATE TABLE {schema}.repeat_count (
  seq        bigint  NOT NULL,
  session    integer NOT NULL,              -- of the server process that counted
  duplicates bigint  NOT NULL DEFAULT 0,
  conflicts  bigint  NOT NULL DEFAULT 0,
  PRIMARY KEY (seq, session)
);

CREATE TABLE {schema}.rejection (
  code    text    NOT NULL,                 -- the error's code
  session integer NOT NULL,
  count   bigint  NOT NULL,
  PRIMARY KEY (code, session)
);

-- Attempts whose answer said that the receiver had seen the delivery before; counted by session, as above.
CREATE TABLE {schema}.receiver_duplicate (
  destination text    NOT NULL,
  session     integer NOT NULL,
  count       bigint  NOT NULL CHECK (count >= 1),
  PRIMARY KEY (destination, session)
);

CREATE TABLE {schema}.destination (
  destination_id text     NOT NULL PRIMARY KEY,   -- immutable: it enters delivery IDs
  tenant         text     NOT NULL,
  name           text     NOT NULL,
  scope          text,
  url            text     NOT NULL,
  enabled        smallint NOT NULL CHECK (enabled IN (0, 1)),
  settings       text     NOT NULL,               -- JSON; secrets by reference only
  disabled_at    bigint,
  disabled_why   text,
  created_at     bigint   NOT NULL,
  updated_at     bigint   NOT NULL,
  policy_version bigint,                          -- what the settings grant: the fan-out is decided in SQL
  max_attempts   integer,
  max_age        bigint,
  UNIQUE (tenant, name)
);

CREATE TABLE {schema}.subscription (
  destination_id text NOT NULL,
  filter         text NOT NULL,
  PRIMARY KEY (destination_id, filter)
);

CREATE TABLE {schema}.event_schema (
  event_type text   NOT NULL PRIMARY KEY,
  schema     text   NOT NULL,
  updated_at bigint NOT NULL
);

-- What each handler's newest worker grants and writes, so that SQL alone can enqueue for it.
CREATE TABLE {schema}.handler (
  handler          text    NOT NULL PRIMARY KEY,
  envelope_version integer NOT NULL,
  policy_version   bigint  NOT NULL,
  max_attempts     integer NOT NULL,
  max_age          bigint  NOT NULL,
  updated_at       bigint  NOT NULL
);

CREATE TABLE {schema}.worker (
  worker     integer NOT NULL GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  pid        integer NOT NULL,
  started_at bigint  NOT NULL,
  seen_at    bigint  NOT NULL,
  stopped_at bigint,
  name       text    NOT NULL UNIQUE,       -- random per process start: a reused host name or PID means nothing
  host       text    NOT NULL,
  version    text    NOT NULL,
  routes     text    NOT NULL               -- JSON [[handler, envelope version], ...]
);

-- What people and the engine did to the ledger as a whole. Each digest covers the row and the digest before it.
CREATE TABLE {schema}.audit (
  audit  bigint NOT NULL PRIMARY KEY,       -- 1, 2, 3, ... without a gap
  at     bigint NOT NULL,
  actor  text   NOT NULL,
  action text   NOT NULL,
  target text   NOT NULL,
  reason text,
  before text,
  after  text,
  digest bytea  NOT NULL
);

-- Legal moves, whatever the code above believes. Terminal is final; only a new generation leaves dead; a charge
-- is exactly a reservation, of what is due, not held and within its age; a refund is the end of one that did not
-- succeed; a lease keeps its holder; a fence only grows; budgets change only with the generation; nothing that was never
-- attempted has succeeded, and nothing waits less than was recorded. AFTER, since a BEFORE
-- trigger locks the old row first, with a log record of its own; either way an illegal statement changes nothing.
CREATE TRIGGER delivery_state_legal AFTER UPDATE ON {schema}.delivery_state FOR EACH ROW
WHEN ((OLD.disposition > 1 AND NOT (OLD.disposition = 4 AND NEW.disposition = 0))
  OR NEW.seq <> OLD.seq OR NEW.route <> OLD.route OR NEW.flow <> OLD.flow OR NEW.priority <> OLD.priority
  OR (OLD.disposition = 0 AND NEW.disposition IN (2, 3) AND OLD.fence = 0)
  OR (OLD.disposition = 0 AND NEW.disposition = 0 AND NEW.available_at < OLD.available_at)
  OR NEW.fence <> OLD.fence + (OLD.disposition = 0 AND NEW.disposition = 1)::int
  OR NEW.generation <> OLD.generation + (OLD.disposition = 4)::int
  OR (OLD.disposition <> 4 AND NEW.attempt <> OLD.attempt + (OLD.disposition = 0 AND NEW.disposition = 1)::int
      AND NOT (OLD.disposition = 1 AND NEW.disposition IN (0, 4, 5) AND NEW.attempt = OLD.attempt - 1))
  OR (OLD.disposition = 4 AND NEW.attempt <> 0)
  OR (OLD.disposition <> 4 AND (NEW.max_attempts <> OLD.max_attempts OR NEW.deadline_at <> OLD.deadline_at))
  OR (OLD.disposition = 1 AND NEW.disposition = 1 AND NEW.leased_by <> OLD.leased_by)
  OR (OLD.disposition = 0 AND NEW.disposition = 1 AND (OLD.hold <> 0 OR NEW.hold <> 0
      OR NEW.started_at < OLD.available_at OR NEW.started_at >= OLD.deadline_at)))
EXECUTE FUNCTION {schema}.refuse('illegal change of a delivery');
CREATE TRIGGER delivery_state_born BEFORE INSERT ON {schema}.delivery_state FOR EACH ROW
WHEN (NEW.disposition <> 0 OR NEW.attempt <> 0 OR NEW.fence <> 0 OR NEW.generation <> 0)
EXECUTE FUNCTION {schema}.refuse('a delivery is born waiting, with an untouched budget');

-- Append-only. Retention alone deletes, in a transaction that says so in the setting redrive.purging.
CREATE TRIGGER delivery_state_no_delete BEFORE DELETE ON {schema}.delivery_state FOR EACH ROW
WHEN (current_setting('redrive.purging', true) IS DISTINCT FROM 'on')
EXECUTE FUNCTION {schema}.refuse('a delivery is always in exactly one disposition');
CREATE TRIGGER attempt_no_update BEFORE UPDATE ON {schema}.attempt FOR EACH ROW
EXECUTE FUNCTION {schema}.refuse('attempt is append-only');
CREATE TRIGGER attempt_no_delete BEFORE DELETE ON {schema}.attempt FOR EACH ROW
WHEN (current_setting('redrive.purging', true) IS DISTINCT FROM 'on')
EXECUTE FUNCTION {schema}.refuse('attempt is append-only');
CREATE TRIGGER generation_no_update BEFORE UPDATE ON {schema}.generation FOR EACH ROW
EXECUTE FUNCTION {schema}.refuse('generation is append-only');
CREATE TRIGGER generation_no_delete BEFORE DELETE ON {schema}.generation FOR EACH ROW
WHEN (current_setting('redrive.purging', true) IS DISTINCT FROM 'on')
EXECUTE FUNCTION {schema}.refuse('generation is append-only');
CREATE TRIGGER transition_no_update BEFORE UPDATE ON {schema}.transition FOR EACH ROW
EXECUTE FUNCTION {schema}.refuse('transition is append-only');
CREATE TRIGGER transition_no_delete BEFORE DELETE ON {schema}.transition FOR EACH ROW
WHEN (current_setting('redrive.purging', true) IS DISTINCT FROM 'on')
EXECUTE FUNCTION {schema}.refuse('transition is append-only');
CREATE TRIGGER event_no_update BEFORE UPDATE ON {schema}.event FOR EACH ROW
WHEN (NOT (OLD.purged_at IS NULL AND NEW.purged_at IS NOT NULL AND NEW.payload = ''
           AND NEW.event_seq = OLD.event_seq AND NEW.event_id = OLD.event_id AND NEW.event_type = OLD.event_type
           AND NEW.payload_hash = OLD.payload_hash AND NEW.fan_out = OLD.fan_out AND NEW.tenant = OLD.tenant)
      OR current_setting('redrive.purging', true) IS DISTINCT FROM 'on')
EXECUTE FUNCTION {schema}.refuse('event is append-only');
CREATE TRIGGER event_no_delete BEFORE DELETE ON {schema}.event FOR EACH ROW
WHEN (current_setting('redrive.purging', true) IS DISTINCT FROM 'on')
EXECUTE FUNCTION {schema}.refuse('event is append-only');
CREATE TRIGGER delivery_no_update BEFORE UPDATE ON {schema}.delivery FOR EACH ROW
EXECUTE FUNCTION {schema}.refuse('delivery is insert-only');
CREATE TRIGGER delivery_no_delete BEFORE DELETE ON {schema}.delivery FOR EACH ROW
WHEN (current_setting('redrive.purging', true) IS DISTINCT FROM 'on')
EXECUTE FUNCTION {schema}.refuse('delivery is insert-only');
CREATE TRIGGER identity_no_update BEFORE UPDATE ON {schema}.identity FOR EACH ROW
WHEN (NOT (OLD.purged_at IS NULL AND NEW.purged_at IS NOT NULL AND NEW.seq = OLD.seq
           AND NEW.delivery_id = OLD.delivery_id AND NEW.payload_hash = OLD.payload_hash
           AND NEW.first_seen = OLD.first_seen)
      OR current_setting('redrive.purging', true) IS DISTINCT FROM 'on')
EXECUTE FUNCTION {schema}.refuse('identity is insert-only');
CREATE TRIGGER identity_no_delete BEFORE DELETE ON {schema}.identity FOR EACH ROW
WHEN (current_setting('redrive.purging', true) IS DISTINCT FROM 'on')
EXECUTE FUNCTION {schema}.refuse('identity is insert-only');
CREATE TRIGGER policy_no_update BEFORE UPDATE ON {schema}.policy FOR EACH ROW
EXECUTE FUNCTION {schema}.refuse('policy is insert-only');
CREATE TRIGGER policy_no_delete BEFORE DELETE ON {schema}.policy FOR EACH ROW
EXECUTE FUNCTION {schema}.refuse('policy is insert-only');
CREATE TRIGGER audit_no_update BEFORE UPDATE ON {schema}.audit FOR EACH ROW
EXECUTE FUNCTION {schema}.refuse('audit is append-only');
CREATE TRIGGER audit_no_delete BEFORE DELETE ON {schema}.audit FOR EACH ROW
EXECUTE FUNCTION {schema}.refuse('audit is append-only');
CREATE TRIGGER dead_letter_evidence BEFORE UPDATE ON {schema}.dead_letter FOR EACH ROW
WHEN ((NEW.seq, NEW.generation, NEW.cause, NEW.category, NEW.attempts, NEW.died_at, NEW.first_at, NEW.last_at,
       NEW.tenant, NEW.destination, NEW.handler, NEW.scope, NEW.ambiguous, NEW.policy_version)
      IS DISTINCT FROM
      (OLD.seq, OLD.generation, OLD.cause, OLD.category, OLD.attempts, OLD.died_at, OLD.first_at, OLD.last_at,
       OLD.tenant, OLD.destination, OLD.handler, OLD.scope, OLD.ambiguous, OLD.policy_version)
      OR OLD.state <> 'open')
EXECUTE FUNCTION {schema}.refuse('dead_letter is evidence; only its state changes, once');
CREATE TRIGGER dead_letter_no_delete BEFORE DELETE ON {schema}.dead_letter FOR EACH ROW
WHEN (OLD.state = 'open' OR current_setting('redrive.purging', true) IS DISTINCT FROM 'on')
EXECUTE FUNCTION {schema}.refuse('dead_letter is evidence');
CREATE TRIGGER repeat_no_update BEFORE UPDATE ON {schema}.repeat FOR EACH ROW
EXECUTE FUNCTION {schema}.refuse('repeat is append-only');
CREATE TRIGGER repeat_no_delete BEFORE DELETE ON {schema}.repeat FOR EACH ROW
WHEN (current_setting('redrive.purging', true) IS DISTINCT FROM 'on')
EXECUTE FUNCTION {schema}.refuse('repeat is append-only');
CREATE TRIGGER identity_no_truncate BEFORE TRUNCATE ON {schema}.identity
EXECUTE FUNCTION {schema}.refuse('identity is never emptied');
CREATE TRIGGER event_no_truncate BEFORE TRUNCATE ON {schema}.event
EXECUTE FUNCTION {schema}.refuse('event is never emptied');
CREATE TRIGGER delivery_no_truncate BEFORE TRUNCATE ON {schema}.delivery
EXECUTE FUNCTION {schema}.refuse('delivery is never emptied');
CREATE TRIGGER delivery_state_no_truncate BEFORE TRUNCATE ON {schema}.delivery_state
EXECUTE FUNCTION {schema}.refuse('delivery_state is never emptied');
CREATE TRIGGER attempt_no_truncate BEFORE TRUNCATE ON {schema}.attempt
EXECUTE FUNCTION {schema}.refuse('attempt is never emptied');
CREATE TRIGGER generation_no_truncate BEFORE TRUNCATE ON {schema}.generation
EXECUTE FUNCTION {schema}.refuse('generation is never emptied');
CREATE TRIGGER transition_no_truncate BEFORE TRUNCATE ON {schema}.transition
EXECUTE FUNCTION {schema}.refuse('transition is never emptied');
CREATE TRIGGER dead_letter_no_truncate BEFORE TRUNCATE ON {schema}.dead_letter
EXECUTE FUNCTION {schema}.refuse('dead_letter is never emptied');
CREATE TRIGGER policy_no_truncate BEFORE TRUNCATE ON {schema}.policy
EXECUTE FUNCTION {schema}.refuse('policy is never emptied');
CREATE TRIGGER audit_no_truncate BEFORE TRUNCATE ON {schema}.audit
EXECUTE FUNCTION {schema}.refuse('audit is never emptied');
