-- A ledger as release 0.1.0 wrote it: five deliveries, four attempts, one dead letter.
BEGIN TRANSACTION;
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
INSERT INTO "attempt" VALUES(1,1,0,1,1,1780000000039000,1780000000043000,58,'delivered','ok',NULL,NULL,NULL,0,0,NULL);
INSERT INTO "attempt" VALUES(2,1,0,1,1,1780000000039000,1780000000043000,41,'retryable','retry_requested',NULL,NULL,1780000005043000,0,0,NULL);
INSERT INTO "attempt" VALUES(3,1,0,1,1,1780000000039000,1780000000043000,24,'permanent','policy',NULL,NULL,NULL,0,0,NULL);
INSERT INTO "attempt" VALUES(4,1,0,1,1,1780000000039000,1780000000043000,12,'no_op','nothing_to_do',NULL,NULL,NULL,0,0,NULL);
INSERT INTO "attempt" VALUES(5,1,0,1,1,1780000000039000,1780000000047000,37647,'retryable','dns',NULL,NULL,1780000003797000,0,0,NULL);
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
INSERT INTO "audit" VALUES(1,1780000000005000,'tests','destination.add','dst_63jknpv4tszw5xt2q0qbwmakpp',NULL,NULL,'{"acknowledge":"2xx","allow_http":false,"ca_file":null,"certificate":"permanent","client_cert_file":null,"client_key_file":null,"confirm":null,"duplicate_header":"webhook-duplicate","duplicate_status":null,"excerpt":0,"headers":[],"max_response_body":65536,"overrides":[],"policy":{"base":5000000,"cap":28800000000,"factor":4.0,"floor":1000000,"jitter":"equal","max_age":259200000000,"max_attempts":8,"on_unknown":"retry","retry_after_cap":86400000000},"proxy":null,"proxy_authorization":null,"secrets":[],"timeouts":{"connect":5.0,"dns":5.0,"first_byte":15.0,"tls":5.0,"total":30.0}}',X'F50ADDEE68B7CB840C34D5FCD00F9D764F0A742829283C73AA8E35E399F66718');
CREATE TABLE clock (
  one INTEGER NOT NULL PRIMARY KEY CHECK (one = 1),
  now INTEGER NOT NULL
) STRICT;
INSERT INTO "clock" VALUES(1,1780000000063000);
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
INSERT INTO "dead_letter" VALUES(1,3,0,'open','job','default',NULL,'','permanent','policy',1,1780000000039000,1780000000043000,0,1194096835470278195,1780000000043000);
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
INSERT INTO "delivery" VALUES(1,X'E6D299F7F32434FE7E301BB7C98FD947','job','default',NULL,'','good',NULL,X'2266696E6522','application/json',1,1194096835470278195,3,1780086400009000,1780000000009000,1780000000009000,0);
INSERT INTO "delivery" VALUES(2,X'2D367E999AE38F436C0D92550039A79C','job','default',NULL,'','later',NULL,X'22726574727922','application/json',1,1194096835470278195,3,1780086400013000,1780000000013000,1780000000013000,0);
INSERT INTO "delivery" VALUES(3,X'1A1B67136B433AD0741D3E9FD471B8EE','job','default',NULL,'','dead',NULL,X'227065726D616E656E7422','application/json',1,1194096835470278195,3,1780086400017000,1780000000017000,1780000000017000,0);
INSERT INTO "delivery" VALUES(4,X'038FE95766987C9264EBD5F62530E22C','job','default',NULL,'','none',NULL,X'226E6F5F6F7022','application/json',1,1194096835470278195,3,1780086400021000,1780000000021000,1780000000021000,0);
INSERT INTO "delivery" VALUES(5,X'51F578ABD0D48DA5546F97A5D7B9B5AB','webhook','default',NULL,'dst_63jknpv4tszw5xt2q0qbwmakpp','order-1',1,NULL,'application/json',1,2574771323966617761,8,1780259200029000,1780000000029000,1780000000029000,0);
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
INSERT INTO "delivery_state" VALUES(1,171715999814556377,5436091304661627285,0,2,2,0,0,1,3,1780086400009000,1780000000009000,1,NULL,NULL,NULL,0,0,0,0,'ok');
INSERT INTO "delivery_state" VALUES(2,171715999814556377,5436091304661627285,1,2,0,0,0,1,3,1780086400013000,1780000005043000,1,NULL,NULL,NULL,0,0,0,0,'retry_requested');
INSERT INTO "delivery_state" VALUES(3,171715999814556377,5436091304661627285,0,2,4,0,0,1,3,1780086400017000,1780000000017000,1,NULL,NULL,NULL,0,0,0,0,'policy');
INSERT INTO "delivery_state" VALUES(4,171715999814556377,5436091304661627285,0,2,3,0,0,1,3,1780086400021000,1780000000021000,1,NULL,NULL,NULL,0,0,0,0,'nothing_to_do');
INSERT INTO "delivery_state" VALUES(5,6719790070643480654,8495978465012993006,1,2,0,0,0,1,8,1780259200029000,1780000003797000,1,NULL,NULL,NULL,0,0,0,0,'dns');
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
INSERT INTO "destination" VALUES('dst_63jknpv4tszw5xt2q0qbwmakpp','default','orders',NULL,'https://example.com/hooks',1,'{"acknowledge":"2xx","allow_http":false,"ca_file":null,"certificate":"permanent","client_cert_file":null,"client_key_file":null,"confirm":null,"duplicate_header":"webhook-duplicate","duplicate_status":null,"excerpt":0,"headers":[],"max_response_body":65536,"overrides":[],"policy":{"base":5000000,"cap":28800000000,"factor":4.0,"floor":1000000,"jitter":"equal","max_age":259200000000,"max_attempts":8,"on_unknown":"retry","retry_after_cap":86400000000},"proxy":null,"proxy_authorization":null,"secrets":[],"timeouts":{"connect":5.0,"dns":5.0,"first_byte":15.0,"tls":5.0,"total":30.0}}',NULL,NULL,1780000000005000,1780000000005000);
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
INSERT INTO "event" VALUES(1,X'A83CC856346D6B248799D62501F5CBDD','order-1','order.paid','default',NULL,'application/json',X'7B226F72646572223A317D',X'B595D0061B1FE3703724E3437BF19B641D728FAF842DAED212D8EAEE82B34968',1,NULL,1780000000029000,1);
CREATE TABLE event_schema (
  event_type TEXT    NOT NULL PRIMARY KEY,
  schema     TEXT    NOT NULL,
  updated_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
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
CREATE TABLE identity (
  seq          INTEGER NOT NULL PRIMARY KEY,
  delivery_id  BLOB    NOT NULL UNIQUE CHECK (length(delivery_id) = 16),
  payload_hash BLOB    NOT NULL,
  first_seen   INTEGER NOT NULL
) STRICT;
INSERT INTO "identity" VALUES(1,X'E6D299F7F32434FE7E301BB7C98FD947',X'1EC9AD666874529E960C8E06E1485C2986E39CDC6014BFDBEDD84F28F42AE937',1780000000009000);
INSERT INTO "identity" VALUES(2,X'2D367E999AE38F436C0D92550039A79C',X'1AACB326230A2CAD2F28BD4F377A38194D5115188854C4A70204C4AEA5293B0E',1780000000013000);
INSERT INTO "identity" VALUES(3,X'1A1B67136B433AD0741D3E9FD471B8EE',X'37F3F788E8B92346FD7E60A0F8102DED7DC35E30FFDD3680625B06F580773FE9',1780000000017000);
INSERT INTO "identity" VALUES(4,X'038FE95766987C9264EBD5F62530E22C',X'CFB38C7BD12F85503DD659D5443EDE36069A035A34902D649D1D71DED3E44040',1780000000021000);
INSERT INTO "identity" VALUES(5,X'51F578ABD0D48DA5546F97A5D7B9B5AB',X'B595D0061B1FE3703724E3437BF19B641D728FAF842DAED212D8EAEE82B34968',1780000000029000);
CREATE TABLE ledger (
  one         INTEGER NOT NULL PRIMARY KEY CHECK (one = 1),
  environment TEXT    NOT NULL,
  created_at  INTEGER NOT NULL,
  registry    INTEGER NOT NULL DEFAULT 0   -- another random number with every change of the registry
) STRICT;
INSERT INTO "ledger" VALUES(1,'test',1780000000002000,1051839178501027272);
CREATE TABLE policy (
  version INTEGER NOT NULL PRIMARY KEY,    -- derived from the spec
  spec    TEXT    NOT NULL
) STRICT;
INSERT INTO "policy" VALUES(1194096835470278195,'{"base":10000000,"cap":60000000,"factor":2.0,"floor":0,"jitter":"full","max_age":86400000000,"max_attempts":3,"on_unknown":"retry","retry_after_cap":86400000000}');
INSERT INTO "policy" VALUES(2574771323966617761,'{"base":5000000,"cap":28800000000,"factor":4.0,"floor":1000000,"jitter":"equal","max_age":259200000000,"max_attempts":8,"on_unknown":"retry","retry_after_cap":86400000000}');
CREATE TABLE receiver_duplicate (
  destination TEXT    NOT NULL PRIMARY KEY,
  count       INTEGER NOT NULL CHECK (count >= 1)
) STRICT, WITHOUT ROWID;
CREATE TABLE rejection (
  code  TEXT    NOT NULL PRIMARY KEY,      -- the error's code
  count INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE TABLE repeat (
  seq      INTEGER NOT NULL,
  number   INTEGER NOT NULL,
  at       INTEGER NOT NULL,
  decided  TEXT    NOT NULL CHECK (decided IN ('duplicate', 'conflict')),
  path     TEXT    NOT NULL,
  producer TEXT    NOT NULL,
  PRIMARY KEY (seq, number)
) STRICT, WITHOUT ROWID;
INSERT INTO "repeat" VALUES(1,1,1780000000025000,'duplicate','library','shop');
CREATE TABLE repeat_count (
  seq        INTEGER NOT NULL PRIMARY KEY,
  duplicates INTEGER NOT NULL DEFAULT 0,
  conflicts  INTEGER NOT NULL DEFAULT 0
) STRICT;
INSERT INTO "repeat_count" VALUES(1,1,0);
CREATE TABLE schema_migration (
  version    INTEGER NOT NULL PRIMARY KEY,
  name       TEXT    NOT NULL,
  digest     TEXT    NOT NULL,
  breaking   INTEGER NOT NULL,
  applied_at INTEGER NOT NULL
) STRICT;
INSERT INTO "schema_migration" VALUES(1,'ledger','1824621a45ca1b823b483d23ee67c330a32390f8784c2f60917694f881c13484',0,1780000000002000);
CREATE TABLE subscription (
  destination_id TEXT NOT NULL,
  filter         TEXT NOT NULL,
  PRIMARY KEY (destination_id, filter)
) STRICT, WITHOUT ROWID;
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
INSERT INTO "worker" VALUES(1,'host-a:4321:0001','host-a',4321,'0.1.0','[["job", 1], ["webhook", 1]]',1780000000033000,1780000000063000,1780000000063000);
CREATE INDEX delivery_by_tenant ON delivery (tenant, seq);
CREATE INDEX delivery_by_destination ON delivery (destination, seq);
CREATE INDEX delivery_by_event ON delivery (event_seq) WHERE event_seq IS NOT NULL;
CREATE INDEX delivery_state_ready ON delivery_state (route, priority, available_at, seq)
  WHERE disposition = 0 AND hold = 0;
CREATE INDEX delivery_state_leased ON delivery_state (leased_until) WHERE disposition = 1;
CREATE INDEX delivery_state_deadline ON delivery_state (deadline_at) WHERE disposition <= 1;
CREATE INDEX delivery_state_held ON delivery_state (flow) WHERE hold <> 0;
CREATE INDEX dead_letter_open ON dead_letter (destination, cause, category, dead_letter) WHERE state = 'open';
CREATE INDEX dead_letter_by_tenant ON dead_letter (tenant, dead_letter) WHERE state = 'open';
CREATE INDEX transition_by_delivery ON transition (seq);
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
COMMIT;
PRAGMA application_id = 1919185526;
PRAGMA user_version = 1;
