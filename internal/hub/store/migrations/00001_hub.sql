-- +goose Up
-- Times are milliseconds since 1970 by the database's clock, ids are texts that sort by time, JSON is text. The
-- statements are the same for SQLite and PostgreSQL.

CREATE TABLE profile (
  name TEXT PRIMARY KEY,
  body TEXT NOT NULL, -- client.Profile
  updated BIGINT NOT NULL
);

CREATE TABLE api_key (
  id TEXT PRIMARY KEY,
  name TEXT NOT NULL,
  scopes TEXT NOT NULL, -- separated by spaces
  hash TEXT NOT NULL UNIQUE, -- SHA-256 of the key: it is random, a slow hash would add nothing
  created BIGINT NOT NULL,
  used BIGINT,
  expires BIGINT,
  revoked BIGINT
);
CREATE UNIQUE INDEX api_key_name ON api_key(name) WHERE revoked IS NULL;

CREATE TABLE session ( -- of the console
  hash TEXT PRIMARY KEY,
  key_id TEXT NOT NULL REFERENCES api_key(id),
  csrf TEXT NOT NULL,
  created BIGINT NOT NULL,
  expires BIGINT NOT NULL
);

CREATE TABLE invite (
  hash TEXT PRIMARY KEY,
  created BIGINT NOT NULL,
  expires BIGINT NOT NULL,
  used BIGINT,
  host_id TEXT
);

CREATE TABLE host (
  id TEXT PRIMARY KEY,
  name TEXT NOT NULL,
  hash TEXT NOT NULL UNIQUE,
  version TEXT NOT NULL DEFAULT '',
  slots BIGINT NOT NULL DEFAULT 0,
  paired BIGINT NOT NULL,
  seen BIGINT,
  revoked BIGINT,
  report TEXT NOT NULL DEFAULT ''
);
CREATE UNIQUE INDEX host_name ON host(name) WHERE revoked IS NULL;

CREATE TABLE conversation (
  id TEXT PRIMARY KEY,
  key TEXT NOT NULL UNIQUE,
  profile TEXT NOT NULL,
  messages BIGINT NOT NULL DEFAULT 0, -- seq of the last message
  events BIGINT NOT NULL DEFAULT 0, -- seq of the last event
  host_id TEXT, -- that has the session
  created BIGINT NOT NULL,
  updated BIGINT NOT NULL
);
CREATE INDEX conversation_updated ON conversation(updated, id);

CREATE TABLE message (
  id TEXT PRIMARY KEY,
  conversation_id TEXT NOT NULL REFERENCES conversation(id),
  seq BIGINT NOT NULL,
  key_id TEXT NOT NULL DEFAULT '', -- who sent it
  idempotency TEXT, -- of that sender
  digest TEXT NOT NULL DEFAULT '', -- of the request, to tell a repetition from another with the same key
  profile TEXT NOT NULL,
  text TEXT NOT NULL,
  author TEXT NOT NULL DEFAULT '',
  webhook TEXT NOT NULL DEFAULT '',
  traceparent TEXT NOT NULL DEFAULT '',
  created BIGINT NOT NULL,
  UNIQUE (conversation_id, seq)
);
CREATE UNIQUE INDEX message_idempotency ON message(key_id, idempotency) WHERE idempotency IS NOT NULL;
CREATE INDEX message_sender ON message(key_id, conversation_id);

-- One run for each message. At most one run of a conversation is ready or running: the others wait, and the next is made
-- ready in the transaction that ends the one before. So a claim looks at what can be claimed and at nothing else.
CREATE TABLE run (
  id TEXT PRIMARY KEY,
  conversation_id TEXT NOT NULL REFERENCES conversation(id),
  message_id TEXT NOT NULL, -- of the conversation's message with the same seq
  seq BIGINT NOT NULL, -- the message's
  profile TEXT NOT NULL,
  priority BIGINT NOT NULL DEFAULT 0,
  state TEXT NOT NULL, -- waiting, ready, running, done
  ready BIGINT, -- since when; a run that was given back may be ready from a later time on
  prefer TEXT, -- the host that has the session
  prefer_until BIGINT, -- others wait until then
  attempts BIGINT NOT NULL DEFAULT 0,
  max_attempts BIGINT NOT NULL,
  host_id TEXT,
  fence BIGINT NOT NULL DEFAULT 0, -- raised at each claim
  lease BIGINT, -- until when the host has it
  heard BIGINT NOT NULL DEFAULT 0, -- events of this attempt that are kept
  cancel TEXT NOT NULL DEFAULT '', -- why it is to be stopped
  reason TEXT NOT NULL DEFAULT '',
  activity TEXT NOT NULL DEFAULT '',
  session_id TEXT NOT NULL DEFAULT '',
  created BIGINT NOT NULL,
  started BIGINT,
  finished BIGINT,
  status TEXT NOT NULL DEFAULT '',
  reply TEXT,
  error_code TEXT NOT NULL DEFAULT '',
  error_message TEXT NOT NULL DEFAULT '',
  cost_usd DOUBLE PRECISION NOT NULL DEFAULT 0,
  input_tokens BIGINT NOT NULL DEFAULT 0,
  output_tokens BIGINT NOT NULL DEFAULT 0,
  duration_ms BIGINT NOT NULL DEFAULT 0,
  outcome TEXT NOT NULL DEFAULT '',
  UNIQUE (conversation_id, seq)
);
CREATE UNIQUE INDEX run_one ON run(conversation_id) WHERE state IN ('ready', 'running');
CREATE INDEX run_ready ON run(prefer, priority DESC, ready, id) WHERE state = 'ready';
CREATE INDEX run_preference ON run(prefer_until) WHERE state = 'ready' AND prefer IS NOT NULL;
CREATE INDEX run_waiting ON run(conversation_id, seq) WHERE state = 'waiting';
CREATE INDEX run_running ON run(lease) WHERE state = 'running';
CREATE INDEX run_host ON run(host_id) WHERE state = 'running';
CREATE INDEX run_created ON run(created, id);
CREATE INDEX run_failed ON run(created, id) WHERE status NOT IN ('', 'ok'); -- looked for among very many that went well

CREATE TABLE attempt (
  run_id TEXT NOT NULL REFERENCES run(id),
  n BIGINT NOT NULL,
  fence BIGINT NOT NULL,
  host_id TEXT NOT NULL,
  started BIGINT NOT NULL,
  ended BIGINT,
  ended_by TEXT NOT NULL DEFAULT '', -- finished, lease_lost, released, revoked
  reason TEXT NOT NULL DEFAULT '',
  PRIMARY KEY (run_id, n)
);

CREATE TABLE event (
  conversation_id TEXT NOT NULL REFERENCES conversation(id),
  seq BIGINT NOT NULL,
  run_id TEXT,
  attempt BIGINT NOT NULL DEFAULT 0,
  type TEXT NOT NULL,
  at BIGINT NOT NULL,
  data TEXT NOT NULL DEFAULT '',
  PRIMARY KEY (conversation_id, seq)
);
CREATE INDEX event_run ON event(run_id, seq) WHERE run_id IS NOT NULL;

CREATE TABLE approval (
  id TEXT PRIMARY KEY,
  kind TEXT NOT NULL, -- call, question
  run_id TEXT NOT NULL REFERENCES run(id),
  conversation_id TEXT NOT NULL,
  fence BIGINT NOT NULL,
  host_id TEXT NOT NULL,
  digest TEXT NOT NULL,
  question TEXT NOT NULL,
  state TEXT NOT NULL, -- pending, approved, denied, answered, expired, cancelled
  asked BIGINT NOT NULL,
  deadline BIGINT NOT NULL,
  answered BIGINT,
  answered_by TEXT NOT NULL DEFAULT '',
  reason TEXT NOT NULL DEFAULT ''
);
CREATE INDEX approval_pending ON approval(deadline) WHERE state = 'pending';
CREATE INDEX approval_asked ON approval(asked, id);
CREATE INDEX approval_run ON approval(run_id);

CREATE TABLE webhook (
  name TEXT PRIMARY KEY,
  url TEXT NOT NULL,
  events TEXT NOT NULL, -- separated by spaces
  every_conversation BIGINT NOT NULL,
  secret TEXT NOT NULL, -- in clear: it signs
  created BIGINT NOT NULL
);

-- The outbox: written in the transaction of what it tells of.
CREATE TABLE delivery (
  id TEXT PRIMARY KEY, -- the webhook-id header
  webhook TEXT NOT NULL,
  conversation_id TEXT NOT NULL,
  seq BIGINT NOT NULL, -- of the event: the order of a conversation at a webhook
  run_id TEXT NOT NULL,
  event TEXT NOT NULL,
  body TEXT NOT NULL,
  state TEXT NOT NULL, -- waiting, pending, delivered, dead
  attempts BIGINT NOT NULL DEFAULT 0,
  next BIGINT, -- not before
  fence BIGINT NOT NULL DEFAULT 0,
  error TEXT NOT NULL DEFAULT '',
  created BIGINT NOT NULL,
  delivered BIGINT,
  UNIQUE (conversation_id, webhook, seq)
);
CREATE UNIQUE INDEX delivery_one ON delivery(webhook, conversation_id) WHERE state = 'pending';
CREATE INDEX delivery_next ON delivery(next, id) WHERE state = 'pending';
CREATE INDEX delivery_waiting ON delivery(webhook, conversation_id, seq) WHERE state = 'waiting';
CREATE INDEX delivery_created ON delivery(created, id);

CREATE TABLE hook (
  name TEXT PRIMARY KEY,
  body TEXT NOT NULL, -- client.Hook without the secret
  secret TEXT NOT NULL
);

CREATE TABLE schedule (
  name TEXT PRIMARY KEY,
  body TEXT NOT NULL, -- client.Schedule
  next BIGINT, -- null: never again
  last BIGINT
);
CREATE INDEX schedule_next ON schedule(next) WHERE next IS NOT NULL;

CREATE TABLE file (
  id TEXT PRIMARY KEY,
  run_id TEXT NOT NULL,
  conversation_id TEXT NOT NULL REFERENCES conversation(id),
  name TEXT NOT NULL,
  media_type TEXT NOT NULL,
  size BIGINT NOT NULL,
  sha256 TEXT NOT NULL,
  created BIGINT NOT NULL,
  data BYTEA NOT NULL
);
CREATE INDEX file_conversation ON file(conversation_id, id);

CREATE TABLE run_update ( -- what runs said before their replies; told as events
  id TEXT PRIMARY KEY,
  run_id TEXT NOT NULL REFERENCES run(id),
  text TEXT NOT NULL
);
CREATE INDEX run_update_run ON run_update(run_id);

CREATE TABLE trend (
  day TEXT NOT NULL, -- UTC, 2006-01-02
  profile TEXT NOT NULL,
  status TEXT NOT NULL,
  shard BIGINT NOT NULL, -- one of a few by chance: runs that end at once do not wait for each other
  runs BIGINT NOT NULL,
  cost_usd DOUBLE PRECISION NOT NULL,
  input_tokens BIGINT NOT NULL,
  output_tokens BIGINT NOT NULL,
  duration_ms BIGINT NOT NULL,
  PRIMARY KEY (day, profile, status, shard)
);

CREATE TABLE audit (
  id TEXT PRIMARY KEY,
  at BIGINT NOT NULL,
  actor TEXT NOT NULL,
  action TEXT NOT NULL,
  object TEXT NOT NULL,
  detail TEXT NOT NULL DEFAULT ''
);
CREATE INDEX audit_at ON audit(at);

-- +goose Down
DROP TABLE audit;
DROP TABLE trend;
DROP TABLE run_update;
DROP TABLE file;
DROP TABLE schedule;
DROP TABLE hook;
DROP TABLE delivery;
DROP TABLE webhook;
DROP TABLE approval;
DROP TABLE event;
DROP TABLE attempt;
DROP TABLE run;
DROP TABLE message;
DROP TABLE conversation;
DROP TABLE host;
DROP TABLE invite;
DROP TABLE session;
DROP TABLE api_key;
DROP TABLE profile;
