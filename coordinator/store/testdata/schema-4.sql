PRAGMA foreign_keys=OFF;
BEGIN TRANSACTION;
CREATE TABLE answers (
  caller TEXT NOT NULL,
  method TEXT NOT NULL,
  request_id TEXT NOT NULL,
  payload_hash TEXT NOT NULL,
  response BLOB NOT NULL,
  time INTEGER NOT NULL,
  PRIMARY KEY (caller, method, request_id)) WITHOUT ROWID;
INSERT INTO "answers" VALUES('anonymous','SubmitJob','r-1','cccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccc',X'0A036A2D31',1700000000000000);
CREATE TABLE artifacts (
  task_id TEXT NOT NULL REFERENCES tasks (task_id) ON DELETE CASCADE,
  position INTEGER NOT NULL,
  name TEXT NOT NULL,
  uri TEXT NOT NULL,
  bytes INTEGER NOT NULL,
  sha256 TEXT NOT NULL,
  rows INTEGER NOT NULL,
  PRIMARY KEY (task_id, position)) WITHOUT ROWID;
INSERT INTO "artifacts" VALUES('j-1/fit_features',0,'pca','file:///b/pca',10,'ffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff',5);
CREATE TABLE attempts (
  task_id TEXT NOT NULL REFERENCES tasks (task_id) ON DELETE CASCADE,
  attempt INTEGER NOT NULL,
  store_epoch INTEGER NOT NULL,
  island_id TEXT NOT NULL,
  incarnation INTEGER NOT NULL,
  secret BLOB NOT NULL,
  outcome INTEGER NOT NULL,
  message TEXT NOT NULL,
  start_time INTEGER NOT NULL,
  end_time INTEGER,
  PRIMARY KEY (task_id, attempt)) WITHOUT ROWID;
INSERT INTO "attempts" VALUES('j-1/cluster',1,1,'a',1,X'730063726574',5,'late',1700000000000000,1700000000000000);
INSERT INTO "attempts" VALUES('j-1/cluster',2,1,'b',1,X'730063726574',1,'',1700000000000000,NULL);
CREATE TABLE checkpoints (
  manifest_uri TEXT PRIMARY KEY,
  task_id TEXT NOT NULL,
  attempt INTEGER NOT NULL,
  step INTEGER NOT NULL,
  manifest_sha256 TEXT NOT NULL,
  milestone INTEGER NOT NULL,
  state INTEGER NOT NULL,
  commit_time INTEGER NOT NULL) WITHOUT ROWID;
INSERT INTO "checkpoints" VALUES('file:///b/jobs/j-1/train_expert-0/1-1/00000010-x/manifest.json','j-1/train_expert-0',1,10,'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa',0,2,1700000000000000);
INSERT INTO "checkpoints" VALUES('file:///b/jobs/j-1/train_expert-0/1-1/00000020-x/manifest.json','j-1/train_expert-0',1,20,'bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb',0,1,1700000000000000);
CREATE TABLE deleted_jobs (job_id TEXT PRIMARY KEY, delete_time INTEGER NOT NULL) WITHOUT ROWID;
INSERT INTO "deleted_jobs" VALUES('j-0',1700000000000000);
CREATE TABLE final_progress (
  task_id TEXT PRIMARY KEY REFERENCES tasks (task_id) ON DELETE CASCADE,
  progress TEXT NOT NULL) WITHOUT ROWID;
INSERT INTO "final_progress" VALUES('j-1/fit_features','{"step":7,"total_steps":9,"loss":0.5,"samples_per_second":0.0,"metrics":{"accuracy":0.25}}');
CREATE TABLE islands (
  island_id TEXT PRIMARY KEY,
  incarnation INTEGER NOT NULL,
  request_id TEXT NOT NULL,
  capabilities TEXT NOT NULL,
  register_time INTEGER NOT NULL, drain_reason TEXT NOT NULL DEFAULT '') WITHOUT ROWID;
INSERT INTO "islands" VALUES('a',2,'start-2','{"build":"b","device_kind":"cpu","device_name":"","format":[1,1],"labels":{"zone":"x"},"memory_bytes_per_rank":0,"protocol":[1,1],"ranks":2}',1700000000000000,'');
CREATE TABLE jobs (
  sequence INTEGER PRIMARY KEY AUTOINCREMENT,
  job_id TEXT NOT NULL UNIQUE,
  spec_yaml TEXT NOT NULL,
  dataset_manifest_uri TEXT NOT NULL,
  state INTEGER NOT NULL,
  create_time INTEGER NOT NULL,
  end_time INTEGER,
  message TEXT NOT NULL,
  model_version TEXT NOT NULL,
  revision INTEGER NOT NULL);
INSERT INTO "jobs" VALUES(1,'j-1','model_name: "digits"
dataset: "digits"
experts: 2
seed: 0
features:
  kind: "pixels_pca"
  components: 32
  column: ""
  encoder_uri: ""
clustering:
  method: "kmeans"
  fine_centroids: 64
  fine_iterations: 50
  coarse_iterations: 100
  batch_size: 1024
  normalize: false
model:
  patch: 2
  width: 96
  depth: 6
  heads: 4
  mlp_ratio: 4
  self_conditioning: false
training:
  steps: 100
  batch_size: 64
  learning_rate: 0.001
  warmup_steps: 0
  learning_rate_schedule: "constant"
  weight_decay: 0
  beta1: 0.9
  beta2: 0.999
  epsilon: 1e-08
  clip_norm: 1
  ema_decay: 0.999
  class_dropout: 0.1
  checkpoint_every: 100
  keep_checkpoints: 2
  milestone_every: 0
  precision:
    params: "float32"
    compute: "float32"
    reduce: "float32"
    ema: "float32"
  flip: false
  self_conditioning_rate: 0.5
router_model:
  patch: 2
  width: 64
  depth: 4
  heads: 4
  mlp_ratio: 4
  self_conditioning: false
router_training:
  steps: 100
  batch_size: 64
  learning_rate: 0.001
  warmup_steps: 0
  learning_rate_schedule: "constant"
  weight_decay: 0
  beta1: 0.9
  beta2: 0.999
  epsilon: 1e-08
  clip_norm: 1
  ema_decay: 0.999
  class_dropout: 0.1
  checkpoint_every: 100
  keep_checkpoints: 2
  milestone_every: 0
  precision:
    params: "float32"
    compute: "float32"
    reduce: "float32"
    ema: "float32"
  flip: false
  self_conditioning_rate: 0.5
pipeline:
  schedule: "1f1b"
  stages: 0
  micro_batches: 4
  memory: "auto"
  replicas: 1
  recompute: "auto"
  fill: "auto"
  frozen_cache: "auto"
requirements:
  min_ranks: 1
  device_kind: ""
  min_memory_bytes: 0
  labels: {}
priority: 0
failure_budget: 3
frozen: []
','file:///b/datasets/digits/manifest.json',2,1700000000000000,NULL,'it''s going','',7);
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
INSERT INTO "meta" VALUES('collection_held','0');
INSERT INTO "meta" VALUES('restored','0');
INSERT INTO "meta" VALUES('restored_epoch','0');
INSERT INTO "meta" VALUES('revision','7');
INSERT INTO "meta" VALUES('store_epoch','1');
INSERT INTO "meta" VALUES('store_id','0123456789abcdef0123456789abcdef');
CREATE TABLE model_versions (
  sequence INTEGER PRIMARY KEY AUTOINCREMENT,
  name TEXT NOT NULL,
  version TEXT NOT NULL,
  job_id TEXT NOT NULL,
  uri TEXT NOT NULL,
  digest TEXT NOT NULL,
  experts INTEGER NOT NULL,
  publish_time INTEGER NOT NULL,
  UNIQUE (name, version));
INSERT INTO "model_versions" VALUES(1,'m','v1','j','file:///b/m','d',2,1700000000000000);
INSERT INTO "model_versions" VALUES(2,'m','v2','j','file:///b/m','d',2,1700000000000000);
INSERT INTO "model_versions" VALUES(3,'m','v3','j','file:///b/m','d',2,1700000000000000);
CREATE TABLE schema_version (version INTEGER PRIMARY KEY, time INTEGER NOT NULL);
INSERT INTO "schema_version" VALUES(1,1700000000000000);
INSERT INTO "schema_version" VALUES(2,1700000000000000);
INSERT INTO "schema_version" VALUES(3,1700000000000000);
INSERT INTO "schema_version" VALUES(4,1700000000000000);
CREATE TABLE serving (
  name TEXT PRIMARY KEY,
  version TEXT NOT NULL,
  generation INTEGER NOT NULL,
  change_time INTEGER NOT NULL,
  cause TEXT NOT NULL) WITHOUT ROWID;
INSERT INTO "serving" VALUES('m','v3',3,1700000000000000,'published');
CREATE TABLE serving_history (
  name TEXT NOT NULL,
  generation INTEGER NOT NULL,
  version TEXT NOT NULL,
  change_time INTEGER NOT NULL,
  cause TEXT NOT NULL,
  PRIMARY KEY (name, generation)) WITHOUT ROWID;
INSERT INTO "serving_history" VALUES('m',1,'v1',1700000000000000,'published');
INSERT INTO "serving_history" VALUES('m',2,'v2',1700000000000000,'published');
INSERT INTO "serving_history" VALUES('m',3,'v3',1700000000000000,'published');
CREATE TABLE tasks (
  task_id TEXT PRIMARY KEY,
  job_id TEXT NOT NULL REFERENCES jobs (job_id) ON DELETE CASCADE,
  position INTEGER NOT NULL,
  kind INTEGER NOT NULL,
  task_index INTEGER NOT NULL,
  state INTEGER NOT NULL,
  attempt INTEGER NOT NULL,
  island_id TEXT NOT NULL,
  committed_step INTEGER NOT NULL,
  attempt_committed INTEGER NOT NULL,
  failures INTEGER NOT NULL,
  message TEXT NOT NULL,
  depends_on TEXT NOT NULL, move_from TEXT NOT NULL DEFAULT '', move_to TEXT NOT NULL DEFAULT '', move_until INTEGER) WITHOUT ROWID;
INSERT INTO "tasks" VALUES('j-1/cluster','j-1',3,3,0,1,0,'',0,0,0,'','j-1/featurize-0
j-1/featurize-1
','','',NULL);
INSERT INTO "tasks" VALUES('j-1/featurize-0','j-1',1,2,0,1,0,'',0,0,0,'','j-1/fit_features
','','',NULL);
INSERT INTO "tasks" VALUES('j-1/featurize-1','j-1',2,2,1,1,0,'',0,0,0,'','j-1/fit_features
','','',NULL);
INSERT INTO "tasks" VALUES('j-1/fit_features','j-1',0,1,0,4,3,'a',50,1,1,'','','','',NULL);
INSERT INTO "tasks" VALUES('j-1/partition-0','j-1',4,4,0,1,0,'',0,0,0,'','j-1/featurize-0
j-1/cluster
','','',NULL);
INSERT INTO "tasks" VALUES('j-1/partition-1','j-1',5,4,1,1,0,'',0,0,0,'','j-1/featurize-1
j-1/cluster
','','',NULL);
INSERT INTO "tasks" VALUES('j-1/publish','j-1',9,7,0,1,0,'',0,0,0,'','j-1/train_expert-0
j-1/train_expert-1
j-1/train_router
j-1/partition-0
j-1/partition-1
','','',NULL);
INSERT INTO "tasks" VALUES('j-1/train_expert-0','j-1',6,5,0,3,1,'a',20,1,0,'','j-1/partition-0
j-1/partition-1
','','',NULL);
INSERT INTO "tasks" VALUES('j-1/train_expert-1','j-1',7,5,1,1,0,'',0,0,0,'','j-1/partition-0
j-1/partition-1
','','',NULL);
INSERT INTO "tasks" VALUES('j-1/train_router','j-1',8,6,0,1,0,'',0,0,0,'','j-1/partition-0
j-1/partition-1
','','',NULL);
CREATE INDEX jobs_by_state ON jobs (state);
CREATE INDEX tasks_by_job ON tasks (job_id, position);
CREATE UNIQUE INDEX one_active_attempt_per_task ON attempts (task_id) WHERE outcome = 1;
CREATE UNIQUE INDEX one_active_attempt_per_island ON attempts (island_id) WHERE outcome = 1;
CREATE INDEX checkpoints_by_task ON checkpoints (task_id, step);
CREATE INDEX answers_by_time ON answers (time);
DELETE FROM "sqlite_sequence";
INSERT INTO "sqlite_sequence" VALUES('jobs',1);
INSERT INTO "sqlite_sequence" VALUES('model_versions',3);
COMMIT;
