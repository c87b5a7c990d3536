-- The first released schema. Integer keys (n, run, session) never leave the store; text ids do. AUTOINCREMENT: a log
-- keeps the key of a Run that was deleted, so no later Run may get it.
-- Rowid tables with unique indexes beside: WITHOUT ROWID with a four-column key was three times slower in groups. Rows
-- that stay short and are found by one key only are kept in its order, which saves a page a step.

CREATE TABLE meta (
  key   TEXT PRIMARY KEY,
  value BLOB NOT NULL
);

CREATE TABLE blueprint (
  n            INTEGER PRIMARY KEY AUTOINCREMENT,
  blueprint_id TEXT NOT NULL,
  version      TEXT NOT NULL,
  body_json    TEXT NOT NULL,
  created_at   INTEGER NOT NULL,
  archived_at  INTEGER
);
CREATE INDEX blueprint_blueprint_id ON blueprint (blueprint_id);

CREATE TABLE task (
  n              INTEGER PRIMARY KEY AUTOINCREMENT,
  task_id        TEXT NOT NULL UNIQUE,
  session_id     TEXT NOT NULL,
  goal           TEXT NOT NULL,
  blueprint_json TEXT NOT NULL,
  init_ctx_json  TEXT NOT NULL,
  labels_json    TEXT NOT NULL,
  status         TEXT NOT NULL,
  created_at     INTEGER NOT NULL,
  updated_at     INTEGER NOT NULL,
  work_dir       TEXT,
  project_root   TEXT
);

CREATE TABLE session (
  n              INTEGER PRIMARY KEY AUTOINCREMENT,
  session_id     TEXT NOT NULL UNIQUE,
  task           INTEGER NOT NULL,
  seq            INTEGER NOT NULL,
  chain          BLOB NOT NULL,
  active_run     INTEGER,
  active_turn    TEXT,
  floor          INTEGER NOT NULL,
  held           INTEGER NOT NULL,
  launched       INTEGER NOT NULL,
  turns          INTEGER NOT NULL,
  model_id       TEXT NOT NULL,
  workspace_root TEXT,
  name           TEXT,
  created_at     INTEGER NOT NULL,
  updated_at     INTEGER NOT NULL
);

CREATE TABLE run (
  n           INTEGER PRIMARY KEY AUTOINCREMENT,
  run_id      TEXT NOT NULL UNIQUE,
  task        INTEGER NOT NULL,
  task_id     TEXT NOT NULL,
  session     INTEGER NOT NULL,
  session_id  TEXT NOT NULL,
  status      TEXT NOT NULL,
  waiting_on  TEXT,
  epoch       INTEGER NOT NULL,
  generation  INTEGER NOT NULL,
  activation  INTEGER NOT NULL,
  turn_id     TEXT,
  woken_by    TEXT NOT NULL,
  opened      INTEGER NOT NULL,
  input_json  TEXT,
  result_json TEXT,
  rows        INTEGER NOT NULL,
  chain       BLOB NOT NULL,
  labels_json TEXT NOT NULL,
  resume_wanted TEXT,
  created_at  INTEGER NOT NULL,
  updated_at  INTEGER NOT NULL,
  started_at  INTEGER,
  activated_at INTEGER NOT NULL,
  ended_at    INTEGER
);
CREATE INDEX run_status ON run (status);
CREATE INDEX run_task ON run (task);
CREATE INDEX run_session ON run (session, status);

CREATE TABLE attempt (
  run        INTEGER NOT NULL,
  ordinal    INTEGER NOT NULL,
  generation INTEGER NOT NULL,
  epoch      INTEGER NOT NULL,
  step_id    TEXT NOT NULL,
  step_ref   TEXT NOT NULL,
  input_hash TEXT NOT NULL,
  occurrence INTEGER NOT NULL,
  attempt    INTEGER NOT NULL,
  lane_json  TEXT NOT NULL,
  opened     INTEGER NOT NULL,
  started_at INTEGER NOT NULL,
  status     TEXT,
  ended_at   INTEGER,
  outcome_json TEXT,
  due_at     INTEGER,
  PRIMARY KEY (run, ordinal)
) WITHOUT ROWID;

CREATE TABLE activation (
  run         INTEGER NOT NULL,
  activation  INTEGER NOT NULL,
  generation  INTEGER NOT NULL,
  epoch       INTEGER NOT NULL,
  verb        TEXT NOT NULL,
  turn_id     TEXT NOT NULL,
  opened      INTEGER NOT NULL,
  closed      INTEGER,
  opened_at   INTEGER NOT NULL,
  input_json  TEXT,
  status      TEXT,
  result_json TEXT,
  closed_at   INTEGER,
  PRIMARY KEY (run, activation)
);

CREATE TABLE replay_log (
  run               INTEGER NOT NULL,
  ordinal           INTEGER NOT NULL,
  generation        INTEGER NOT NULL,
  epoch             INTEGER NOT NULL,
  step_ref          TEXT NOT NULL,
  input_hash        TEXT NOT NULL,
  occurrence        INTEGER NOT NULL,
  lane_json         TEXT NOT NULL,
  ctx_snapshot_json TEXT NOT NULL,
  step_output_json  TEXT NOT NULL,
  created_at        INTEGER NOT NULL,
  hash              BLOB NOT NULL,
  PRIMARY KEY (run, ordinal),
  UNIQUE (run, step_ref, input_hash, occurrence, generation)
);

CREATE TABLE decision (
  run        INTEGER NOT NULL,
  ordinal    INTEGER NOT NULL,
  generation INTEGER NOT NULL,
  epoch      INTEGER NOT NULL,
  lane_json  TEXT NOT NULL,
  fork       INTEGER NOT NULL,
  winner     INTEGER NOT NULL,
  created_at INTEGER NOT NULL,
  hash       BLOB NOT NULL,
  PRIMARY KEY (run, ordinal),
  UNIQUE (run, lane_json, fork, generation)
);

CREATE TABLE cut (
  run          INTEGER NOT NULL,
  ordinal      INTEGER NOT NULL,
  generation   INTEGER NOT NULL,
  epoch        INTEGER NOT NULL,
  retired_json TEXT NOT NULL,
  created_at   INTEGER NOT NULL,
  hash         BLOB NOT NULL,
  PRIMARY KEY (run, ordinal)
);

CREATE TABLE log (
  session   INTEGER NOT NULL,
  seq       INTEGER NOT NULL,
  type      TEXT NOT NULL,
  at        INTEGER NOT NULL,
  run       INTEGER,
  turn_id   TEXT,
  item_id   TEXT,
  revision  INTEGER NOT NULL,
  origin    INTEGER,
  body_json TEXT NOT NULL,
  hash      BLOB NOT NULL,
  PRIMARY KEY (session, seq)
);

CREATE TABLE boundary (
  session       INTEGER NOT NULL,
  seq           INTEGER NOT NULL,
  at            INTEGER NOT NULL,
  rest_json     TEXT NOT NULL,
  segments_json TEXT NOT NULL,
  size          INTEGER NOT NULL,
  elided        INTEGER NOT NULL,
  pruned        INTEGER NOT NULL,
  PRIMARY KEY (session, seq)
);

CREATE TABLE request (
  n               INTEGER PRIMARY KEY,
  request_id      TEXT NOT NULL UNIQUE,
  kind            TEXT NOT NULL,
  source          TEXT NOT NULL,
  run             INTEGER NOT NULL,
  run_id          TEXT NOT NULL,
  task_id         TEXT NOT NULL,
  session         INTEGER NOT NULL,
  session_id      TEXT NOT NULL,
  generation      INTEGER NOT NULL,
  step_id         TEXT NOT NULL,
  step_ref        TEXT NOT NULL,
  input_hash      TEXT NOT NULL,
  occurrence      INTEGER NOT NULL,
  lane_json       TEXT NOT NULL,
  nth             INTEGER NOT NULL,
  turn_id         TEXT NOT NULL,
  title           TEXT NOT NULL,
  action_json     TEXT NOT NULL,
  digest          TEXT NOT NULL,
  choices_json    TEXT NOT NULL,
  questions_json  TEXT NOT NULL,
  status          TEXT NOT NULL,
  opened          INTEGER NOT NULL,
  opened_at       INTEGER NOT NULL,
  expires_at      INTEGER,
  settled         INTEGER,
  settled_at      INTEGER,
  resolution_json TEXT,
  consumed        INTEGER NOT NULL
);
CREATE INDEX request_run ON request (run);
CREATE INDEX request_status ON request (status);
CREATE INDEX request_session ON request (session);

CREATE TABLE command (
  command_id  TEXT PRIMARY KEY,
  digest      TEXT NOT NULL,
  answer_json TEXT NOT NULL,
  created_at  INTEGER NOT NULL
);

CREATE TABLE value (
  digest TEXT PRIMARY KEY,
  body   TEXT NOT NULL
);

CREATE TABLE launch (
  run    INTEGER NOT NULL,
  digest TEXT NOT NULL,
  body   TEXT NOT NULL,
  PRIMARY KEY (run, digest)
);

CREATE TABLE spliced (
  digest     TEXT PRIMARY KEY,
  run        INTEGER NOT NULL,
  parts_json TEXT NOT NULL
);
