-- The ledger, as contract 4 splits it: insert-only facts apart from the one narrow, hot, mutable row.
-- Times are integer microseconds UTC. IDs are the 16 bytes behind dlv_ / evt_ / gen_.

-- What this file is. Single row; the clock never goes below it (it is the highest time ever stored).
CREATE TABLE ledger (
  one         INTEGER NOT NULL PRIMARY KEY CHECK (one = 1),
  environment TEXT    NOT NULL,
  created_at  INTEGER NOT NULL,
  registry    INTEGER NOT NULL DEFAULT 0   -- another random number with every change of the registry
) STRICT;

CREATE TABLE clock (
  one INTEGER NOT NULL PRIMARY KEY CHECK (one = 1),
  now INTEGER NOT NULL
) STRICT;

-- Outlives the delivery as a tombstone: the only random key.
CREATE TABLE identity (
  seq          INTEGER NOT NULL PRIMARY KEY,
  delivery_id  BLOB    NOT NULL UNIQUE CHECK (length(delivery_id) = 16),
  payload_hash BLOB    NOT NULL,
  first_seen   INTEGER NOT NULL
) STRICT;

CREATE TABLE policy (
  version INTEGER NOT NULL PRIMARY KEY,    -- derived from the spec
  spec    TEXT    NOT NULL
) STRICT;

CREATE TABLE event (
  event_seq        INTEGER NOT NULL PRIMARY KEY,
  event_id         BLOB    NOT NULL UNIQUE CHECK (length(event_id) = 16),
  event_key        TEXT    NOT NULL,       -- the producer's own event ID, as given
  event_type       TEXT    NOT NULL,
  tenant           TEXT    NOT NULL,
  scope            TEXT,
  content_type     TEXT    NOT NULL,
  payload          BLOB    NOT NULL,       -- once, byte for byte
  payload_hash     BLOB    NOT NULL,
  envelope_version INTEGER NOT NULL,
  occurred_at      INTEGER,
  accepted_at      INTEGER NOT NULL,
  fan_out          INTEGER NOT NULL        -- frozen at the first publish
) STRICT;

-- The first entry of a delivery's history: accepted, generation 0.
CREATE TABLE delivery (
  seq              INTEGER NOT NULL PRIMARY KEY,
  delivery_id      BLOB    NOT NULL,
  handler          TEXT    NOT NULL,
  tenant           TEXT    NOT NULL,
  scope            TEXT,
  destination      TEXT    NOT NULL,
  key              TEXT    NOT NULL,
  event_seq        INTEGER,                -- the payload is the event's ...
  payload          BLOB,                   -- ... or inline
  content_type     TEXT    NOT NULL,
  envelope_version INTEGER NOT NULL,
  policy_version   INTEGER NOT NULL,
  max_attempts     INTEGER NOT NULL,       -- the first budget
  deadline_at      INTEGER NOT NULL,
  first_queued_at  INTEGER NOT NULL,
  first_due_at     INTEGER NOT NULL,
  first_hold       INTEGER NOT NULL DEFAULT 0,
  CHECK ((event_seq IS NULL) <> (payload IS NULL))
) STRICT;
CREATE INDEX delivery_by_tenant ON delivery (tenant, seq);
CREATE INDEX delivery_by_destination ON delivery (destination, seq);
CREATE INDEX delivery_by_event ON delivery (event_seq) WHERE event_seq IS NOT NULL;

-- The only hot, mutable row.
CREATE TABLE delivery_state (
  seq              INTEGER NOT NULL PRIMARY KEY,
  route            INTEGER NOT NULL,       -- (handler, envelope version): who can execute it
  flow             INTEGER NOT NULL,       -- (route, destination, tenant): the unit of fairness
  lane             INTEGER NOT NULL CHECK (lane BETWEEN 0 AND 2),
  priority         INTEGER NOT NULL CHECK (priority BETWEEN 0 AND 3),
  disposition      INTEGER NOT NULL CHECK (disposition BETWEEN 0 AND 5),
  hold             INTEGER NOT NULL DEFAULT 0,
  generation       INTEGER NOT NULL CHECK (generation >= 0),
  attempt          INTEGER NOT NULL CHECK (attempt BETWEEN 0 AND max_attempts),
  max_attempts     INTEGER NOT NULL CHECK (max_attempts BETWEEN 1 AND 1000),
  deadline_at      INTEGER NOT NULL,
  available_at     INTEGER NOT NULL,
  fence            INTEGER NOT NULL CHECK (fence >= 0),
  leased_by        INTEGER,
  leased_until     INTEGER,
  started_at       INTEGER,
  deferrals        INTEGER NOT NULL DEFAULT 0,   -- uncharged reservations since the last charged one
  own_faults       INTEGER NOT NULL DEFAULT 0,   -- of those, the ones that were our own fault, in a row
  ambiguous        INTEGER NOT NULL DEFAULT 0 CHECK (ambiguous IN (0, 1)),
  cancel_requested INTEGER NOT NULL DEFAULT 0 CHECK (cancel_requested IN (0, 1)),
  last_category    TEXT,
  CHECK ((disposition = 1) = (leased_by IS NOT NULL)),
  CHECK ((disposition = 1) = (leased_until IS NOT NULL)),
  CHECK ((disposition = 1) = (started_at IS NOT NULL)),
  CHECK (disposition <> 1 OR attempt >= 1),
  CHECK (disposition <> 0 OR attempt < max_attempts)   -- what waits can still start
) STRICT;
CREATE INDEX delivery_state_ready ON delivery_state (route, priority, available_at, seq)
  WHERE disposition = 0 AND hold = 0;
CREATE INDEX delivery_state_leased ON delivery_state (leased_until) WHERE disposition = 1;
-- A reservation changes neither column nor predicate, so it leaves this index alone.
CREATE INDEX delivery_state_deadline ON delivery_state (deadline_at) WHERE disposition <= 1;
-- Empty while nothing is held.
CREATE INDEX delivery_state_held ON delivery_state (flow) WHERE hold <> 0;

CREATE TABLE generation (
  seq            INTEGER NOT NULL,
  generation     INTEGER NOT NULL CHECK (generation >= 1),
  replay_id      BLOB    NOT NULL,
  parent         INTEGER NOT NULL,
  max_attempts   INTEGER NOT NULL,
  deadline_at    INTEGER NOT NULL,
  policy_version INTEGER NOT NULL,
  redrive_item   INTEGER,
  opened_at      INTEGER NOT NULL,
  PRIMARY KEY (seq, generation)
) STRICT, WITHOUT ROWID;

-- One row for each charged reservation, written when it ends. The open one is on delivery_state.
CREATE TABLE attempt (
  seq         INTEGER NOT NULL,
  fence       INTEGER NOT NULL,
  generation  INTEGER NOT NULL,
  number      INTEGER NOT NULL CHECK (number >= 1),
  worker      INTEGER,
  started_at  INTEGER NOT NULL,
  ended_at    INTEGER NOT NULL,
  duration    INTEGER NOT NULL,            -- microseconds, by the worker's monotonic clock
  outcome     TEXT    NOT NULL,
  category    TEXT    NOT NULL,
  status      INTEGER,
  retry_after INTEGER,                     -- microseconds that the target asked for
  next_at     INTEGER,                     -- the retry that this attempt scheduled
  deferrals   INTEGER NOT NULL DEFAULT 0,  -- uncharged reservations between the attempt before and this one
  flags       INTEGER NOT NULL DEFAULT 0,
  excerpt     TEXT,
  PRIMARY KEY (seq, fence)
) STRICT, WITHOUT ROWID;

CREATE TABLE dead_letter (
  dead_letter    INTEGER NOT NULL PRIMARY KEY,
  seq            INTEGER NOT NULL,
  generation     INTEGER NOT NULL,
  state          TEXT    NOT NULL DEFAULT 'open' CHECK (state IN ('open', 'redriven', 'discarded')),
  handler        TEXT    NOT NULL,
  tenant         TEXT    NOT NULL,
  scope          TEXT,
  destination    TEXT    NOT NULL,
  cause          TEXT    NOT NULL,
  category       TEXT    NOT NULL,
  attempts       INTEGER NOT NULL,
  first_at       INTEGER,                  -- first and last attempt of the generation
  last_at        INTEGER,
  ambiguous      INTEGER NOT NULL,
  policy_version INTEGER NOT NULL,
  died_at        INTEGER NOT NULL,
  UNIQUE (seq, generation)
) STRICT;
CREATE INDEX dead_letter_open ON dead_letter (destination, cause, category, dead_letter) WHERE state = 'open';
CREATE INDEX dead_letter_by_tenant ON dead_letter (tenant, dead_letter) WHERE state = 'open';

-- What the rows above do not already say.
CREATE TABLE transition (
  transition INTEGER NOT NULL PRIMARY KEY,
  seq        INTEGER NOT NULL,
  at         INTEGER NOT NULL,
  kind       TEXT    NOT NULL,
  generation INTEGER NOT NULL,
  fence      INTEGER NOT NULL,
  category   TEXT,
  actor      TEXT,
  reason     TEXT
) STRICT;
CREATE INDEX transition_by_delivery ON transition (seq);

-- Enqueues that found the delivery already there: singly up to a bound, then counted.
CREATE TABLE repeat (
  seq      INTEGER NOT NULL,
  number   INTEGER NOT NULL,
  at       INTEGER NOT NULL,
  decided  TEXT    NOT NULL CHECK (decided IN ('duplicate', 'conflict')),
  path     TEXT    NOT NULL,
  producer TEXT    NOT NULL,
  PRIMARY KEY (seq, number)
) STRICT, WITHOUT ROWID;

CREATE TABLE repeat_count (
  seq        INTEGER NOT NULL PRIMARY KEY,
  duplicates INTEGER NOT NULL DEFAULT 0,
  conflicts  INTEGER NOT NULL DEFAULT 0
) STRICT;

CREATE TABLE rejection (
  code  TEXT    NOT NULL PRIMARY KEY,      -- the error's code
  count INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- Attempts whose answer said that the receiver had seen the delivery before.
CREATE TABLE receiver_duplicate (
  destination TEXT    NOT NULL PRIMARY KEY,
  count       INTEGER NOT NULL CHECK (count >= 1)
) STRICT, WITHOUT ROWID;

CREATE TABLE destination (
  destination_id TEXT    NOT NULL PRIMARY KEY,   -- immutable: it enters delivery IDs
  tenant         TEXT    NOT NULL,
  name           TEXT    NOT NULL,
  scope          TEXT,
  url            TEXT    NOT NULL,
  enabled        INTEGER NOT NULL CHECK (enabled IN (0, 1)),
  settings       TEXT    NOT NULL,               -- JSON; secrets by reference only
  disabled_at    INTEGER,
  disabled_why   TEXT,
  created_at     INTEGER NOT NULL,
  updated_at     INTEGER NOT NULL,
  UNIQUE (tenant, name)
) STRICT;

CREATE TABLE subscription (
  destination_id TEXT NOT NULL,
  filter         TEXT NOT NULL,
  PRIMARY KEY (destination_id, filter)
) STRICT, WITHOUT ROWID;

CREATE TABLE event_schema (
  event_type TEXT    NOT NULL PRIMARY KEY,
  schema     TEXT    NOT NULL,
  updated_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE worker (
  worker     INTEGER NOT NULL PRIMARY KEY,
  name       TEXT    NOT NULL UNIQUE,      -- random per process start: a reused host name or PID means nothing
  host       TEXT    NOT NULL,
  pid        INTEGER NOT NULL,
  version    TEXT    NOT NULL,
  routes     TEXT    NOT NULL,             -- JSON [[handler, envelope version], ...]
  started_at INTEGER NOT NULL,
  seen_at    INTEGER NOT NULL,
  stopped_at INTEGER
) STRICT;

-- What people and the engine did to the ledger as a whole. Each digest covers the row and the digest before it.
CREATE TABLE audit (
  audit  INTEGER NOT NULL PRIMARY KEY,
  at     INTEGER NOT NULL,
  actor  TEXT    NOT NULL,
  action TEXT    NOT NULL,
  target TEXT    NOT NULL,
  reason TEXT,
  before TEXT,
  after  TEXT,
  digest BLOB    NOT NULL
) STRICT;

-- Legal moves, whatever the code above believes. Terminal is final; only a new generation leaves dead; a charge
-- is exactly a reservation, of what is due, not held and within its age; a refund is the end of one that did not
-- succeed; a lease keeps its holder; a fence only grows; budgets change only with the generation.
CREATE TRIGGER delivery_state_legal BEFORE UPDATE ON delivery_state
WHEN (OLD.disposition > 1 AND NOT (OLD.disposition = 4 AND NEW.disposition = 0))
  OR NEW.fence <> OLD.fence + (OLD.disposition = 0 AND NEW.disposition = 1)
  OR NEW.generation <> OLD.generation + (OLD.disposition = 4)
  OR (OLD.disposition <> 4 AND NEW.attempt <> OLD.attempt + (OLD.disposition = 0 AND NEW.disposition = 1)
      AND NOT (OLD.disposition = 1 AND NEW.disposition IN (0, 4, 5) AND NEW.attempt = OLD.attempt - 1))
  OR (OLD.disposition = 4 AND NEW.attempt <> 0)
  OR (OLD.disposition <> 4 AND (NEW.max_attempts <> OLD.max_attempts OR NEW.deadline_at <> OLD.deadline_at))
  OR (OLD.disposition = 1 AND NEW.disposition = 1 AND NEW.leased_by <> OLD.leased_by)
  OR (OLD.disposition = 0 AND NEW.disposition = 1 AND (OLD.hold <> 0 OR NEW.hold <> 0
      OR NEW.started_at < OLD.available_at OR NEW.started_at >= OLD.deadline_at))
BEGIN
  SELECT RAISE(ABORT, 'redrive: illegal change of a delivery');
END;
CREATE TRIGGER delivery_state_born BEFORE INSERT ON delivery_state
WHEN NEW.disposition <> 0 OR NEW.attempt <> 0 OR NEW.fence <> 0 OR NEW.generation <> 0
BEGIN
  SELECT RAISE(ABORT, 'redrive: a delivery is born waiting, with an untouched budget');
END;
CREATE TRIGGER delivery_state_no_delete BEFORE DELETE ON delivery_state
BEGIN SELECT RAISE(ABORT, 'redrive: a delivery is always in exactly one disposition'); END;
CREATE TRIGGER attempt_no_update BEFORE UPDATE ON attempt
BEGIN SELECT RAISE(ABORT, 'redrive: attempt is append-only'); END;
CREATE TRIGGER attempt_no_delete BEFORE DELETE ON attempt
BEGIN SELECT RAISE(ABORT, 'redrive: attempt is append-only'); END;
CREATE TRIGGER generation_no_update BEFORE UPDATE ON generation
BEGIN SELECT RAISE(ABORT, 'redrive: generation is append-only'); END;
CREATE TRIGGER generation_no_delete BEFORE DELETE ON generation
BEGIN SELECT RAISE(ABORT, 'redrive: generation is append-only'); END;
CREATE TRIGGER transition_no_update BEFORE UPDATE ON transition
BEGIN SELECT RAISE(ABORT, 'redrive: transition is append-only'); END;
CREATE TRIGGER transition_no_delete BEFORE DELETE ON transition
BEGIN SELECT RAISE(ABORT, 'redrive: transition is append-only'); END;
CREATE TRIGGER event_no_update BEFORE UPDATE ON event
BEGIN SELECT RAISE(ABORT, 'redrive: event is append-only'); END;
CREATE TRIGGER event_no_delete BEFORE DELETE ON event
BEGIN SELECT RAISE(ABORT, 'redrive: event is append-only'); END;
CREATE TRIGGER delivery_no_update BEFORE UPDATE ON delivery
BEGIN SELECT RAISE(ABORT, 'redrive: delivery is insert-only'); END;
CREATE TRIGGER delivery_no_delete BEFORE DELETE ON delivery
BEGIN SELECT RAISE(ABORT, 'redrive: delivery is insert-only'); END;
CREATE TRIGGER identity_no_update BEFORE UPDATE ON identity
BEGIN SELECT RAISE(ABORT, 'redrive: identity is insert-only'); END;
CREATE TRIGGER identity_no_delete BEFORE DELETE ON identity
BEGIN SELECT RAISE(ABORT, 'redrive: identity is insert-only'); END;
CREATE TRIGGER policy_no_update BEFORE UPDATE ON policy
BEGIN SELECT RAISE(ABORT, 'redrive: policy is insert-only'); END;
CREATE TRIGGER policy_no_delete BEFORE DELETE ON policy
BEGIN SELECT RAISE(ABORT, 'redrive: policy is insert-only'); END;
CREATE TRIGGER audit_no_update BEFORE UPDATE ON audit
BEGIN SELECT RAISE(ABORT, 'redrive: audit is append-only'); END;
CREATE TRIGGER audit_no_delete BEFORE DELETE ON audit
BEGIN SELECT RAISE(ABORT, 'redrive: audit is append-only'); END;
CREATE TRIGGER dead_letter_evidence BEFORE UPDATE ON dead_letter
WHEN NEW.seq IS NOT OLD.seq OR NEW.generation IS NOT OLD.generation OR NEW.cause IS NOT OLD.cause
  OR NEW.category IS NOT OLD.category OR NEW.attempts IS NOT OLD.attempts OR NEW.died_at IS NOT OLD.died_at
  OR NEW.first_at IS NOT OLD.first_at OR NEW.last_at IS NOT OLD.last_at OR NEW.tenant IS NOT OLD.tenant
  OR NEW.destination IS NOT OLD.destination OR NEW.handler IS NOT OLD.handler OR NEW.scope IS NOT OLD.scope
  OR NEW.ambiguous IS NOT OLD.ambiguous OR NEW.policy_version IS NOT OLD.policy_version
  OR OLD.state <> 'open'
BEGIN SELECT RAISE(ABORT, 'redrive: dead_letter is evidence; only its state changes, once'); END;
CREATE TRIGGER dead_letter_no_delete BEFORE DELETE ON dead_letter
BEGIN SELECT RAISE(ABORT, 'redrive: dead_letter is evidence'); END;
CREATE TRIGGER repeat_no_update BEFORE UPDATE ON repeat
BEGIN SELECT RAISE(ABORT, 'redrive: repeat is append-only'); END;
CREATE TRIGGER repeat_no_delete BEFORE DELETE ON repeat
BEGIN SELECT RAISE(ABORT, 'redrive: repeat is append-only'); END;
