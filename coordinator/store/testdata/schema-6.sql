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
INSERT INTO answers VALUES('anonymous','SubmitJob','r-1','cccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccc',X'0a036a2d31',1700000000000000);
CREATE TABLE artifacts (
  task_id TEXT NOT NULL REFERENCES tasks (task_id) ON DELETE CASCADE,
  position INTEGER NOT NULL,
  name TEXT NOT NULL,
  uri TEXT NOT NULL,
  bytes INTEGER NOT NULL,
  sha256 TEXT NOT NULL,
  rows INTEGER NOT NULL,
  PRIMARY KEY (task_id, position)) WITHOUT ROWID;
INSERT INTO artifacts VALUES('j-1/fit_features',0,'pca','file:///b/pca',10,'ffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff',5);
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
  end_time INTEGER, code TEXT NOT NULL DEFAULT '',
  PRIMARY KEY (task_id, attempt)) WITHOUT ROWID;
INSERT INTO attempts VALUES('j-1/cluster',1,1,'a',1,X'730063726574',5,'late',1700000000000000,1700000000000000,'');
INSERT INTO attempts VALUES('j-1/cluster',2,1,'b',1,X'730063726574',1,'',1700000000000000,NULL,'');
CREATE TABLE checkpoints (
  manifest_uri TEXT PRIMARY KEY,
  task_id TEXT NOT NULL,
  attempt INTEGER NOT NULL,
  step INTEGER NOT NULL,
  manifest_sha256 TEXT NOT NULL,
  milestone INTEGER NOT NULL,
  state INTEGER NOT NULL,
  commit_time INTEGER NOT NULL) WITHOUT ROWID;
INSERT INTO checkpoints VALUES('file:///b/jobs/j-1/train_expert-0/1-1/00000010-x/manifest.json','j-1/train_expert-0',1,10,'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa',0,2,1700000000000000);
INSERT INTO checkpoints VALUES('file:///b/jobs/j-1/train_expert-0/1-1/00000020-x/manifest.json','j-1/train_expert-0',1,20,'bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb',0,1,1700000000000000);
CREATE TABLE deleted_jobs (job_id TEXT PRIMARY KEY, delete_time INTEGER NOT NULL) WITHOUT ROWID;
INSERT INTO deleted_jobs VALUES('j-0',1700000000000000);
CREATE TABLE final_progress (
  task_id TEXT PRIMARY KEY REFERENCES tasks (task_id) ON DELETE CASCADE,
  progress TEXT NOT NULL) WITHOUT ROWID;
INSERT INTO final_progress VALUES('j-1/fit_features','{"step":7,"total_steps":9,"loss":0.5,"samples_per_second":0.0,"metrics":{"accuracy":0.25}}');
CREATE TABLE islands (
  island_id TEXT PRIMARY KEY,
  incarnation INTEGER NOT NULL,
  request_id TEXT NOT NULL,
  capabilities TEXT NOT NULL,
  register_time INTEGER NOT NULL, drain_reason TEXT NOT NULL DEFAULT '') WITHOUT ROWID;
INSERT INTO islands VALUES('a',2,'start-2','{"build":"b","device_kind":"cpu","device_name":"","format":[1,1],"labels":{"zone":"x"},"memory_bytes_per_rank":0,"protocol":[1,1],"ranks":2}',1700000000000000,'');
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
  revision INTEGER NOT NULL, owner TEXT NOT NULL DEFAULT '');
INSERT INTO jobs VALUES(1,'j-1',replace('model_name: "digits"\ndataset: "digits"\nexperts: 2\nseed: 0\nfeatures:\n  kind: "pixels_pca"\n  components: 32\n  column: ""\n  encoder_uri: ""\nclustering:\n  method: "kmeans"\n  fine_centroids: 64\n  fine_iterations: 50\n  coarse_iterations: 100\n  batch_size: 1024\n  normalize: false\nmodel:\n  patch: 2\n  width: 96\n  depth: 6\n  heads: 4\n  mlp_ratio: 4\n  self_conditioning: false\ntraining:\n  steps: 100\n  batch_size: 64\n  learning_rate: 0.001\n  warmup_steps: 0\n  learning_rate_schedule: "constant"\n  weight_decay: 0\n  beta1: 0.9\n  beta2: 0.999\n  epsilon: 1e-08\n  clip_norm: 1\n  ema_decay: 0.999\n  class_dropout: 0.1\n  checkpoint_every: 100\n  keep_checkpoints: 2\n  milestone_every: 0\n  precision:\n    params: "float32"\n    compute: "float32"\n    reduce: "float32"\n    ema: "float32"\n  flip: false\n  self_conditioning_rate: 0.5\nrouter_model:\n  patch: 2\n  width: 64\n  depth: 4\n  heads: 4\n  mlp_ratio: 4\n  self_conditioning: false\nrouter_training:\n  steps: 100\n  batch_size: 64\n  learning_rate: 0.001\n  warmup_steps: 0\n  learning_rate_schedule: "constant"\n  weight_decay: 0\n  beta1: 0.9\n  beta2: 0.999\n  epsilon: 1e-08\n  clip_norm: 1\n  ema_decay: 0.999\n  class_dropout: 0.1\n  checkpoint_every: 100\n  keep_checkpoints: 2\n  milestone_every: 0\n  precision:\n    params: "float32"\n    compute: "float32"\n    reduce: "float32"\n    ema: "float32"\n  flip: false\n  self_conditioning_rate: 0.5\npipeline:\n  schedule: "1f1b"\n  stages: 0\n  micro_batches: 4\n  memory: "auto"\n  replicas: 1\n  recompute: "auto"\n  fill: "auto"\n  frozen_cache: "auto"\nrequirements:\n  min_ranks: 1\n  device_kind: ""\n  min_memory_bytes: 0\n  labels: {}\npriority: 0\nfailure_budget: 3\nfrozen: []\n','\n',char(10)),'file:///b/datasets/digits/manifest.json',2,1700000000000000,NULL,'it''s going','',7,'');
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
INSERT INTO meta VALUES('collection_held','0');
INSERT INTO meta VALUES('restored','0');
INSERT INTO meta VALUES('restored_epoch','0');
INSERT INTO meta VALUES('revision','7');
INSERT INTO meta VALUES('store_epoch','1');
INSERT INTO meta VALUES('store_id','0123456789abcdef0123456789abcdef');
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
INSERT INTO model_versions VALUES(1,'m','v1','j','file:///b/m','d',2,1700000000000000);
INSERT INTO model_versions VALUES(2,'m','v2','j','file:///b/m','d',2,1700000000000000);
INSERT INTO model_versions VALUES(3,'m','v3','j','file:///b/m','d',2,1700000000000000);
CREATE TABLE schema_version (version INTEGER PRIMARY KEY, time INTEGER NOT NULL);
INSERT INTO schema_version VALUES(1,1700000000000000);
INSERT INTO schema_version VALUES(2,1700000000000000);
INSERT INTO schema_version VALUES(3,1700000000000000);
INSERT INTO schema_version VALUES(4,1700000000000000);
INSERT INTO schema_version VALUES(5,1700000000000000);
INSERT INTO schema_version VALUES(6,1700000000000000);
CREATE TABLE serving (
  name TEXT PRIMARY KEY,
  version TEXT NOT NULL,
  generation INTEGER NOT NULL,
  change_time INTEGER NOT NULL,
  cause TEXT NOT NULL) WITHOUT ROWID;
INSERT INTO serving VALUES('m','v3',3,1700000000000000,'published');
CREATE TABLE serving_history (
  name TEXT NOT NULL,
  generation INTEGER NOT NULL,
  version TEXT NOT NULL,
  change_time INTEGER NOT NULL,
  cause TEXT NOT NULL,
  PRIMARY KEY (name, generation)) WITHOUT ROWID;
INSERT INTO serving_history VALUES('m',1,'v1',1700000000000000,'published');
INSERT INTO serving_history VALUES('m',2,'v2',1700000000000000,'published');
INSERT INTO serving_history VALUES('m',3,'v3',1700000000000000,'published');
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
INSERT INTO tasks VALUES('j-1/cluster','j-1',3,3,0,1,0,'',0,0,0,'',replace('j-1/featurize-0\nj-1/featurize-1\n','\n',char(10)),'','',NULL);
INSERT INTO tasks VALUES('j-1/featurize-0','j-1',1,2,0,1,0,'',0,0,0,'',replace('j-1/fit_features\n','\n',char(10)),'','',NULL);
INSERT INTO tasks VALUES('j-1/featurize-1','j-1',2,2,1,1,0,'',0,0,0,'',replace('j-1/fit_features\n','\n',char(10)),'','',NULL);
INSERT INTO tasks VALUES('j-1/fit_features','j-1',0,1,0,4,3,'a',50,1,1,'','','','',NULL);
INSERT INTO tasks VALUES('j-1/partition-0','j-1',4,4,0,1,0,'',0,0,0,'',replace('j-1/featurize-0\nj-1/cluster\n','\n',char(10)),'','',NULL);
INSERT INTO tasks VALUES('j-1/partition-1','j-1',5,4,1,1,0,'',0,0,0,'',replace('j-1/featurize-1\nj-1/cluster\n','\n',char(10)),'','',NULL);
INSERT INTO tasks VALUES('j-1/publish','j-1',9,7,0,1,0,'',0,0,0,'',replace('j-1/train_expert-0\nj-1/train_expert-1\nj-1/train_router\nj-1/partition-0\nj-1/partition-1\n','\n',char(10)),'','',NULL);
INSERT INTO tasks VALUES('j-1/train_expert-0','j-1',6,5,0,3,1,'a',20,1,0,'',replace('j-1/partition-0\nj-1/partition-1\n','\n',char(10)),'','',NULL);
INSERT INTO tasks VALUES('j-1/train_expert-1','j-1',7,5,1,1,0,'',0,0,0,'',replace('j-1/partition-0\nj-1/partition-1\n','\n',char(10)),'','',NULL);
INSERT INTO tasks VALUES('j-1/train_router','j-1',8,6,0,1,0,'',0,0,0,'',replace('j-1/partition-0\nj-1/partition-1\n','\n',char(10)),'','',NULL);
CREATE TABLE rollbacks (
  task_id TEXT NOT NULL REFERENCES tasks (task_id) ON DELETE CASCADE,
  attempt INTEGER NOT NULL,
  from_step INTEGER NOT NULL,
  to_step INTEGER NOT NULL,
  skip_first INTEGER NOT NULL,
  skip_steps INTEGER NOT NULL,
  reason TEXT NOT NULL,
  message TEXT NOT NULL,
  evidence_uri TEXT NOT NULL,
  time INTEGER NOT NULL,
  PRIMARY KEY (task_id, attempt)) WITHOUT ROWID;
DELETE FROM sqlite_sequence;
INSERT INTO sqlite_sequence VALUES('jobs',1);
INSERT INTO sqlite_sequence VALUES('model_versions',3);
CREATE INDEX jobs_by_state ON jobs (state);
CREATE INDEX tasks_by_job ON tasks (job_id, position);
CREATE UNIQUE INDEX one_active_attempt_per_task ON attempts (task_id) WHERE outcome = 1;
CREATE UNIQUE INDEX one_active_attempt_per_island ON attempts (island_id) WHERE outcome = 1;
CREATE INDEX checkpoints_by_task ON checkpoints (task_id, step);
CREATE INDEX answers_by_time ON answers (time);
COMMIT;
