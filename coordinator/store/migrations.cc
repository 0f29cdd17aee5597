#include "coordinator/store/migrations.h"

#include <iterator>
#include <string>

#include "absl/strings/str_replace.h"
#include "common/base/errors.h"
#include "common/base/status_macros.h"
#include "fmt/format.h"

namespace atl::store {
namespace {

// Append only: a migration that was ever released is never edited. Times are microseconds since the epoch. Written as
// SQLite's; PostgresSql says what it knows to change.
constexpr const char* kMigrations[] = {
    // 1: everything a first coordinator needs.
    R"sql(
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
INSERT INTO meta VALUES ('store_id', lower(hex(randomblob(16)))), ('store_epoch', '0'), ('revision', '0');

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
CREATE INDEX jobs_by_state ON jobs (state);

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
  depends_on TEXT NOT NULL) WITHOUT ROWID;
CREATE INDEX tasks_by_job ON tasks (job_id, position);

CREATE TABLE artifacts (
  task_id TEXT NOT NULL REFERENCES tasks (task_id) ON DELETE CASCADE,
  position INTEGER NOT NULL,
  name TEXT NOT NULL,
  uri TEXT NOT NULL,
  bytes INTEGER NOT NULL,
  sha256 TEXT NOT NULL,
  rows INTEGER NOT NULL,
  PRIMARY KEY (task_id, position)) WITHOUT ROWID;

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
CREATE UNIQUE INDEX one_active_attempt_per_task ON attempts (task_id) WHERE outcome = 1;
CREATE UNIQUE INDEX one_active_attempt_per_island ON attempts (island_id) WHERE outcome = 1;

CREATE TABLE checkpoints (
  manifest_uri TEXT PRIMARY KEY,
  task_id TEXT NOT NULL,
  attempt INTEGER NOT NULL,
  step INTEGER NOT NULL,
  manifest_sha256 TEXT NOT NULL,
  milestone INTEGER NOT NULL,
  state INTEGER NOT NULL,
  commit_time INTEGER NOT NULL) WITHOUT ROWID;
CREATE INDEX checkpoints_by_task ON checkpoints (task_id, step);

CREATE TABLE islands (
  island_id TEXT PRIMARY KEY,
  incarnation INTEGER NOT NULL,
  request_id TEXT NOT NULL,
  capabilities TEXT NOT NULL,
  register_time INTEGER NOT NULL) WITHOUT ROWID;

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

CREATE TABLE serving (
  name TEXT PRIMARY KEY,
  version TEXT NOT NULL,
  generation INTEGER NOT NULL,
  change_time INTEGER NOT NULL,
  cause TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE serving_history (
  name TEXT NOT NULL,
  generation INTEGER NOT NULL,
  version TEXT NOT NULL,
  change_time INTEGER NOT NULL,
  cause TEXT NOT NULL,
  PRIMARY KEY (name, generation)) WITHOUT ROWID;

CREATE TABLE answers (
  caller TEXT NOT NULL,
  method TEXT NOT NULL,
  request_id TEXT NOT NULL,
  payload_hash TEXT NOT NULL,
  response BLOB NOT NULL,
  time INTEGER NOT NULL,
  PRIMARY KEY (caller, method, request_id)) WITHOUT ROWID;
CREATE INDEX answers_by_time ON answers (time);

CREATE TABLE deleted_jobs (job_id TEXT PRIMARY KEY, delete_time INTEGER NOT NULL) WITHOUT ROWID;
)sql",
    // 2: a completed task keeps the last progress it reported, for reports after a restart.
    R"sql(
CREATE TABLE final_progress (
  task_id TEXT PRIMARY KEY REFERENCES tasks (task_id) ON DELETE CASCADE,
  progress TEXT NOT NULL) WITHOUT ROWID;
)sql",
    // 3: what a restored store must remember. A store that took more than one epoch may have been restored before; a
    // backup of an older schema is marked already.
    R"sql(
INSERT OR IGNORE INTO meta VALUES ('restored', '0'), ('collection_held', '0');
INSERT OR IGNORE INTO meta
  SELECT 'restored_epoch', CASE WHEN CAST(value AS INTEGER) > 1 THEN value ELSE '0' END
  FROM meta WHERE key = 'store_epoch';
)sql",
    // 4: what operators ask for: tasks that go on elsewhere, islands that are granted nothing.
    R"sql(
ALTER TABLE tasks ADD COLUMN move_from TEXT NOT NULL DEFAULT '';
ALTER TABLE tasks ADD COLUMN move_to TEXT NOT NULL DEFAULT '';
ALTER TABLE tasks ADD COLUMN move_until INTEGER;
ALTER TABLE islands ADD COLUMN drain_reason TEXT NOT NULL DEFAULT '';
)sql",
    // 5: tasks go back to earlier checkpoints; attempts keep the code of their error.
    R"sql(
ALTER TABLE attempts ADD COLUMN code TEXT NOT NULL DEFAULT '';
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
)sql",
    // 6: who submitted a job.
    R"sql(
ALTER TABLE jobs ADD COLUMN owner TEXT NOT NULL DEFAULT '';
)sql",
    // 7: of an attempt's secret only the hash. 'remains': EraseRemains is due.
    R"sql(
ALTER TABLE attempts RENAME COLUMN secret TO secret_sha256;
UPDATE attempts SET secret_sha256 = sha256(secret_sha256);
INSERT INTO meta SELECT 'remains', CASE WHEN value = '0' THEN '0' ELSE '1' END FROM meta WHERE key = 'revision';
)sql",
};

absl::StatusOr<int64_t> TableCount(Database& database, std::string_view name) {
  // The lease of PostgreSQL's coordinators is there before the first schema.
  Statement statement = database.Prepare(
      database.dialect() == Dialect::kSqlite
          ? "SELECT count(*) FROM sqlite_master WHERE type = 'table' AND name LIKE ?"
          : "SELECT count(*) FROM pg_tables WHERE schemaname = current_schema() AND tablename LIKE ? AND tablename <> "
            "'coordinator_lease'");
  ATOLL_ASSIGN_OR_RETURN(const bool row, statement.Bind(name).Step());
  return row ? statement.Int() : 0;
}

absl::StatusOr<int64_t> CurrentVersion(Database& database) {
  ATOLL_ASSIGN_OR_RETURN(const int64_t tables, TableCount(database, "%"));
  if (tables == 0) return 0;
  ATOLL_ASSIGN_OR_RETURN(const int64_t version_table, TableCount(database, "schema_version"));
  if (version_table == 0) {
    return MakeError(absl::StatusCode::kDataLoss, "STORE_CORRUPT",
                     fmt::format("expected a coordinator's store, found a database of {} other tables", tables));
  }
  Statement statement = database.Prepare("SELECT coalesce(max(version), 0) FROM schema_version");
  ATOLL_RETURN_IF_ERROR(statement.Step().status());
  return statement.Int();
}

absl::Status CheckReadable(int64_t version) {
  if (version <= SchemaVersion()) return absl::OkStatus();
  return MakeError(absl::StatusCode::kFailedPrecondition, "STORE_TOO_NEW",
                   fmt::format("expected schema version {} or older, found {}: a newer build wrote this store",
                               SchemaVersion(), version));
}

absl::Status MigrateTo(Database& database, int64_t version) {
  std::string step = fmt::format(
      "CREATE TABLE IF NOT EXISTS schema_version (version INTEGER PRIMARY KEY, time INTEGER NOT NULL);"
      "{} INSERT INTO schema_version VALUES ({}, unixepoch() * 1000000)",
      kMigrations[version - 1], version);
  if (database.dialect() == Dialect::kPostgres) step = PostgresSql(step);
  ATOLL_RETURN_IF_ERROR(database.Begin());
  absl::Status status = database.ExecuteLong(step);
  if (status.ok()) status = database.Commit();
  if (!status.ok()) database.Rollback();
  return status;
}

absl::StatusOr<bool> RemainsAreDue(Database& database) {
  Statement row = database.Prepare("SELECT value FROM meta WHERE key = 'remains'");
  ATOLL_ASSIGN_OR_RETURN(const bool found, row.Step());
  return found && row.Text() != "0";
}

// Moves SQLite's log into the file and cuts it to nothing.
absl::Status EmptyLog(Database& database) {
  Statement answer = database.Prepare("PRAGMA wal_checkpoint(TRUNCATE)");
  ATOLL_RETURN_IF_ERROR(answer.Step().status());
  if (answer.Int() == 0) return absl::OkStatus();
  return MakeError(absl::StatusCode::kUnavailable, "STORE_LOCKED", "another process reads the database");
}

}  // namespace

std::string PostgresSql(const std::string& sqlite_sql) {
  return absl::StrReplaceAll(
      sqlite_sql, {{" INTEGER PRIMARY KEY AUTOINCREMENT", " BIGINT GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY"},
                   {"lower(hex(randomblob(16)))", "replace(CAST(gen_random_uuid() AS text), '-', '')"},
                   {"unixepoch()", "CAST(extract(epoch FROM clock_timestamp()) AS BIGINT)"},
                   {" WITHOUT ROWID", ""},
                   // Only the first migrations have it; ON CONFLICT DO NOTHING is for both.
                   {"INSERT OR IGNORE INTO", "INSERT INTO"},
                   {" INTEGER", " BIGINT"},
                   {" BLOB", " BYTEA"},
                   // Sorted by bytes, whatever the database's language.
                   {" TEXT", " TEXT COLLATE \"C\""}});
}

int SchemaVersion() {
  return static_cast<int>(std::size(kMigrations));
}

absl::Status CheckSchema(Database& database) {
  ATOLL_ASSIGN_OR_RETURN(const int64_t found, CurrentVersion(database));
  if (found > 0) return CheckReadable(found);
  return MakeError(absl::StatusCode::kDataLoss, "STORE_CORRUPT",
                   "expected a coordinator's store, found an empty database");
}

absl::Status CheckNotNewer(Database& database) {
  ATOLL_ASSIGN_OR_RETURN(const int64_t found, CurrentVersion(database));
  return CheckReadable(found);
}

absl::Status Migrate(Database& database) {
  ATOLL_ASSIGN_OR_RETURN(const int64_t found, CurrentVersion(database));
  ATOLL_RETURN_IF_ERROR(CheckReadable(found));
  for (int64_t version = found; version < SchemaVersion(); ++version) {
    if (absl::Status status = MigrateTo(database, version + 1); !status.ok()) {
      return WithContext(status, fmt::format("migrating to schema version {}", version + 1));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<bool> EraseRemains(Database& database) {
  ATOLL_ASSIGN_OR_RETURN(const bool due, RemainsAreDue(database));
  if (!due) return false;
  if (database.dialect() == Dialect::kPostgres) {
    ATOLL_RETURN_IF_ERROR(database.ExecuteLong("VACUUM FULL attempts"));
  } else {
    ATOLL_RETURN_IF_ERROR(database.Execute("VACUUM"));
    ATOLL_RETURN_IF_ERROR(EmptyLog(database));
  }
  ATOLL_RETURN_IF_ERROR(database.Execute("UPDATE meta SET value = '0' WHERE key = 'remains'"));
  return true;
}

}  // namespace atl::store
