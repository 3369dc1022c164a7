-- How far retention has come. Single row.
CREATE TABLE {schema}.retention (
  one          smallint NOT NULL PRIMARY KEY DEFAULT 1 CHECK (one = 1),
  ran_at       bigint   NOT NULL DEFAULT 0,  -- when a worker last began by itself
  event_after  bigint   NOT NULL DEFAULT 0,  -- events up to here went to somebody, or have lost their payload
  purged       bigint   NOT NULL DEFAULT 0,  -- deliveries taken so far
  forgotten_at bigint   NOT NULL DEFAULT 0   -- the latest purged_at of a tombstone that is gone too
);
INSERT INTO {schema}.retention DEFAULT VALUES;

-- What is left of deliveries that were looked at: when there is something to take in (after_seq, last_seq] by the
-- earliest end of each disposition, so that a run looks only where something is due.
CREATE TABLE {schema}.retention_span (
  after_seq    bigint   NOT NULL PRIMARY KEY,
  last_seq     bigint   NOT NULL,
  looked_at    bigint   NOT NULL,
  unfinished   smallint NOT NULL CHECK (unfinished IN (0, 1)),   -- live, or under an open dead letter
  delivered_at bigint,
  no_op_at     bigint,
  dead_at      bigint,
  cancelled_at bigint
);

-- Retention takes what has ended, and forgets what it has taken: nothing else, whatever the code above believes.
CREATE TRIGGER delivery_state_no_live_delete BEFORE DELETE ON {schema}.delivery_state FOR EACH ROW
WHEN (OLD.disposition <= 1)
EXECUTE FUNCTION {schema}.refuse('a delivery is always in exactly one disposition');
CREATE TRIGGER identity_no_early_delete BEFORE DELETE ON {schema}.identity FOR EACH ROW
WHEN (OLD.purged_at IS NULL)
EXECUTE FUNCTION {schema}.refuse('identity is insert-only');
CREATE TRIGGER event_no_early_delete BEFORE DELETE ON {schema}.event FOR EACH ROW
WHEN (OLD.purged_at IS NULL)
EXECUTE FUNCTION {schema}.refuse('event is append-only');

-- There is no history to list a repeat in once the delivery is gone. The lock keeps the delivery until the repeat is
-- committed; where retention holds the row already, the repeat is left out. Neither waits for the other.
CREATE FUNCTION {schema}.keep_repeated() RETURNS trigger LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off AS $$
BEGIN
  PERFORM 1 FROM {schema}.delivery d WHERE d.seq = NEW.seq FOR KEY SHARE SKIP LOCKED;
  IF NOT FOUND THEN
    RETURN NULL;
  END IF;
  RETURN NEW;
END
$$;
CREATE TRIGGER repeat_of_tombstone BEFORE INSERT ON {schema}.repeat FOR EACH ROW
EXECUTE FUNCTION {schema}.keep_repeated();
CREATE TRIGGER repeat_count_of_tombstone BEFORE INSERT ON {schema}.repeat_count FOR EACH ROW
EXECUTE FUNCTION {schema}.keep_repeated();
