-- Retention: a delivery that ended long ago is taken whole, and its identity stays as a tombstone. Releases that do not
-- know this step go on working: they add no tombstones, and what they note about one is dropped here.

ALTER TABLE identity ADD COLUMN purged_at INTEGER;  -- when retention took the delivery; a tombstone from then on
CREATE INDEX identity_purged ON identity (purged_at) WHERE purged_at IS NOT NULL;
ALTER TABLE event ADD COLUMN purged_at INTEGER;     -- when retention took the payload; the row keeps duplicates out
CREATE INDEX event_purged ON event (purged_at) WHERE purged_at IS NOT NULL;

-- Holds a row within a transaction that purges, and never after it: what is written and removed again in one
-- transaction nobody else can see, and no crash can leave behind.
CREATE TABLE purging (
  one INTEGER NOT NULL PRIMARY KEY CHECK (one = 1)
) STRICT;

-- How far retention has come. Single row.
CREATE TABLE retention (
  one          INTEGER NOT NULL PRIMARY KEY CHECK (one = 1),
  ran_at       INTEGER NOT NULL DEFAULT 0,  -- when a worker last began by itself
  event_after  INTEGER NOT NULL DEFAULT 0,  -- events up to here went to somebody, or have lost their payload
  purged       INTEGER NOT NULL DEFAULT 0,  -- deliveries taken so far
  forgotten_at INTEGER NOT NULL DEFAULT 0   -- the latest purged_at of a tombstone that is gone too
) STRICT;
INSERT INTO retention (one) VALUES (1);

-- What is left of deliveries that were looked at: when there is something to take in (after_seq, last_seq] by the
-- earliest end of each disposition, so that a run looks only where something is due.
CREATE TABLE retention_span (
  after_seq    INTEGER NOT NULL PRIMARY KEY,
  last_seq     INTEGER NOT NULL,
  looked_at    INTEGER NOT NULL,
  unfinished   INTEGER NOT NULL CHECK (unfinished IN (0, 1)),   -- live, or under an open dead letter
  delivered_at INTEGER,
  no_op_at     INTEGER,
  dead_at      INTEGER,
  cancelled_at INTEGER
) STRICT;

DROP TRIGGER delivery_state_no_delete;
CREATE TRIGGER delivery_state_no_delete BEFORE DELETE ON delivery_state
WHEN OLD.disposition <= 1 OR NOT EXISTS (SELECT 1 FROM purging)
BEGIN SELECT RAISE(ABORT, 'redrive: a delivery is always in exactly one disposition'); END;
DROP TRIGGER attempt_no_delete;
CREATE TRIGGER attempt_no_delete BEFORE DELETE ON attempt WHEN NOT EXISTS (SELECT 1 FROM purging)
BEGIN SELECT RAISE(ABORT, 'redrive: attempt is append-only'); END;
DROP TRIGGER generation_no_delete;
CREATE TRIGGER generation_no_delete BEFORE DELETE ON generation WHEN NOT EXISTS (SELECT 1 FROM purging)
BEGIN SELECT RAISE(ABORT, 'redrive: generation is append-only'); END;
DROP TRIGGER transition_no_delete;
CREATE TRIGGER transition_no_delete BEFORE DELETE ON transition WHEN NOT EXISTS (SELECT 1 FROM purging)
BEGIN SELECT RAISE(ABORT, 'redrive: transition is append-only'); END;
DROP TRIGGER event_no_update;
CREATE TRIGGER event_no_update BEFORE UPDATE ON event
WHEN NOT EXISTS (SELECT 1 FROM purging)
  OR OLD.purged_at IS NOT NULL OR NEW.purged_at IS NULL OR length(NEW.payload) > 0
  OR NEW.event_seq <> OLD.event_seq OR NEW.event_id <> OLD.event_id OR NEW.event_type <> OLD.event_type
  OR NEW.payload_hash <> OLD.payload_hash OR NEW.fan_out <> OLD.fan_out OR NEW.tenant <> OLD.tenant
BEGIN SELECT RAISE(ABORT, 'redrive: event is append-only'); END;
DROP TRIGGER event_no_delete;
CREATE TRIGGER event_no_delete BEFORE DELETE ON event
WHEN OLD.purged_at IS NULL OR NOT EXISTS (SELECT 1 FROM purging)
BEGIN SELECT RAISE(ABORT, 'redrive: event is append-only'); END;
DROP TRIGGER delivery_no_delete;
CREATE TRIGGER delivery_no_delete BEFORE DELETE ON delivery WHEN NOT EXISTS (SELECT 1 FROM purging)
BEGIN SELECT RAISE(ABORT, 'redrive: delivery is insert-only'); END;
DROP TRIGGER identity_no_update;
CREATE TRIGGER identity_no_update BEFORE UPDATE ON identity
WHEN NOT EXISTS (SELECT 1 FROM purging)
  OR OLD.purged_at IS NOT NULL OR NEW.purged_at IS NULL OR NEW.seq <> OLD.seq
  OR NEW.delivery_id <> OLD.delivery_id OR NEW.payload_hash <> OLD.payload_hash OR NEW.first_seen <> OLD.first_seen
BEGIN SELECT RAISE(ABORT, 'redrive: identity is insert-only'); END;
DROP TRIGGER identity_no_delete;
CREATE TRIGGER identity_no_delete BEFORE DELETE ON identity
WHEN OLD.purged_at IS NULL OR NOT EXISTS (SELECT 1 FROM purging)
BEGIN SELECT RAISE(ABORT, 'redrive: identity is insert-only'); END;
DROP TRIGGER dead_letter_no_delete;
CREATE TRIGGER dead_letter_no_delete BEFORE DELETE ON dead_letter
WHEN OLD.state = 'open' OR NOT EXISTS (SELECT 1 FROM purging)
BEGIN SELECT RAISE(ABORT, 'redrive: dead_letter is evidence'); END;
DROP TRIGGER repeat_no_delete;
CREATE TRIGGER repeat_no_delete BEFORE DELETE ON repeat WHEN NOT EXISTS (SELECT 1 FROM purging)
BEGIN SELECT RAISE(ABORT, 'redrive: repeat is append-only'); END;

-- There is no history to list a repeat in once the delivery is gone.
CREATE TRIGGER repeat_of_tombstone BEFORE INSERT ON repeat
WHEN EXISTS (SELECT 1 FROM identity i WHERE i.seq = NEW.seq AND i.purged_at IS NOT NULL)
BEGIN SELECT RAISE(IGNORE); END;
CREATE TRIGGER repeat_count_of_tombstone AFTER INSERT ON repeat_count
WHEN EXISTS (SELECT 1 FROM identity i WHERE i.seq = NEW.seq AND i.purged_at IS NOT NULL)
BEGIN DELETE FROM repeat_count WHERE seq = NEW.seq; END;
