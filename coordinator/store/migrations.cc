#include "coordinator/store/migrations.h"

#include <iterator>
#include <string>

#include "absl/strings/str_replace.h"
#include "common/base/errors.h"
#include "common/base/status_macros.h"
#include "fmt/format.h"

namespace atl::store {
namespace {

// A migration that was released is never edited. Times are microseconds since the epoch; of an attempt's secret there
// is only the hash. Written as SQLite's; PostgresSql says what it knows to change.
constexpr const char* kMigrations[] = {
    // 1
    R"sql(
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
INSERT INTO meta VALUES ('store_id', lower(hex(randomblob(16)))), ('store_epoch', '0'), ('revision', '0'),
  ('restored', '0'), ('collection_held', '0'), ('restored_epoch', '0');

CREATE TABLE jobs (
  sequence INTEGER PRIMARY KEY AUTOINCREMENT,
  job_id TEXT NOT NULL UNIQUE,
  owner TEXT NOT NULL,
  spec TEXT NOT NULL,
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
  move_from TEXT NOT NULL DEFAULT '',
  move_to TEXT NOT NULL DEFAULT '',
  move_until INTEGER,
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

CREATE TABLE final_progress (
  task_id TEXT PRIMARY KEY REFERENCES tasks (task_id) ON DELETE CASCADE,
  progress TEXT NOT NULL) WITHOUT ROWID;

CREATE TABLE attempts (
  task_id TEXT NOT NULL REFERENCES tasks (task_id) ON DELETE CASCADE,
  attempt INTEGER NOT NULL,
  store_epoch INTEGER NOT NULL,
  island_id TEXT NOT NULL,
  incarnation INTEGER NOT NULL,
  secret_sha256 BLOB NOT NULL,
  outcome INTEGER NOT NULL,
  code TEXT NOT NULL DEFAULT '',
  message TEXT NOT NULL,
  start_time INTEGER NOT NULL,
  end_time INTEGER,
  PRIMARY KEY (task_id, attempt)) WITHOUT ROWID;
CREATE UNIQUE INDEX one_active_attempt_per_task ON attempts (task_id) WHERE outcome = 1;
CREATE UNIQUE INDEX one_active_attempt_per_island ON attempts (island_id) WHERE outcome = 1;

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
  drain_reason TEXT NOT NULL DEFAULT '',
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

absl::Status CheckReadable(int64_t version, int64_t newest) {
  if (version <= newest) return absl::OkStatus();
  return MakeError(
      absl::StatusCode::kFailedPrecondition, "STORE_TOO_NEW",
      fmt::format("expected schema version {} or older, found {}: a newer build wrote this store", newest, version));
}

absl::Status Apply(Database& database, int64_t version, std::string_view migration) {
  std::string step = fmt::format(
      "CREATE TABLE IF NOT EXISTS schema_version (version INTEGER PRIMARY KEY, time INTEGER NOT NULL);"
      "{} INSERT INTO schema_version VALUES ({}, unixepoch() * 1000000)",
      migration, version);
  if (database.dialect() == Dialect::kPostgres) step = PostgresSql(step);
  ATOLL_RETURN_IF_ERROR(database.Begin());
  absl::Status status = database.Execute(step);
  if (status.ok()) status = database.Commit();
  if (!status.ok()) database.Rollback();
  return status;
}

}  // namespace

std::string PostgresSql(const std::string& sqlite_sql) {
  return absl::StrReplaceAll(
      sqlite_sql, {{" INTEGER PRIMARY KEY AUTOINCREMENT", " BIGINT GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY"},
                   {"lower(hex(randomblob(16)))", "replace(CAST(gen_random_uuid() AS text), '-', '')"},
                   {"unixepoch()", "CAST(extract(epoch FROM clock_timestamp()) AS BIGINT)"},
                   {" WITHOUT ROWID", ""},
                   {" INTEGER", " BIGINT"},
                   {" BLOB", " BYTEA"},
                   // Sorted by bytes, whatever the database's language.
                   {" TEXT", " TEXT COLLATE \"C\""}});
}

absl::Span<const char* const> Migrations() {
  return kMigrations;
}

absl::Status CheckSchema(Database& database) {
  ATOLL_ASSIGN_OR_RETURN(const int64_t found, CurrentVersion(database));
  if (found > 0) return CheckReadable(found, std::ssize(kMigrations));
  return MakeError(absl::StatusCode::kDataLoss, "STORE_CORRUPT",
                   "expected a coordinator's store, found an empty database");
}

absl::Status CheckNotNewer(Database& database) {
  ATOLL_ASSIGN_OR_RETURN(const int64_t found, CurrentVersion(database));
  return CheckReadable(found, std::ssize(kMigrations));
}

absl::Status Migrate(Database& database, absl::Span<const char* const> migrations) {
  const auto newest = static_cast<int64_t>(migrations.size());
  ATOLL_ASSIGN_OR_RETURN(const int64_t found, CurrentVersion(database));
  ATOLL_RETURN_IF_ERROR(CheckReadable(found, newest));
  for (int64_t version = found + 1; version <= newest; ++version) {
    const absl::Status status = Apply(database, version, migrations[static_cast<size_t>(version - 1)]);
    if (!status.ok()) return WithContext(status, fmt::format("migrating to schema version {}", version));
  }
  return absl::OkStatus();
}

}  // namespace atl::store
