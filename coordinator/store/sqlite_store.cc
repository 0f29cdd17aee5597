#include "coordinator/store/sqlite_store.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <utility>

#include "common/base/errors.h"
#include "common/base/failpoint.h"
#include "common/base/status_macros.h"
#include "coordinator/store/migrations.h"
#include "coordinator/store/sqlite_rows.h"
#include "coordinator/store/sqlite_transaction.h"
#include "fmt/format.h"

namespace atl::store {
namespace {

absl::Status CannotOpen(std::string_view path, std::string_view why) {
  return MakeError(absl::StatusCode::kFailedPrecondition, "STORE_CANNOT_OPEN", fmt::format("{}: {}", path, why));
}

// An exclusive lock on "<store>.lock" that ends with the process, however it ends. Holds the owner's process id, for
// the message that the second one gets.
absl::StatusOr<int> LockStore(const std::string& store_path) {
  const std::string path = store_path + ".lock";
  const int descriptor = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (descriptor < 0) return CannotOpen(path, std::strerror(errno));
  char owner[32] = {};
  if (flock(descriptor, LOCK_EX | LOCK_NB) != 0) {
    const ssize_t size = pread(descriptor, owner, sizeof owner - 1, 0);
    close(descriptor);
    return MakeError(absl::StatusCode::kFailedPrecondition, "STORE_IN_USE",
                     fmt::format("store {} belongs to a running coordinator (process {}); stop it first or use another "
                                 "store",
                                 store_path, size > 0 ? owner : "unknown"));
  }
  const std::string self = fmt::format("{}", getpid());
  if (ftruncate(descriptor, 0) != 0 || pwrite(descriptor, self.data(), self.size(), 0) < 0) {
    const int error = errno;
    close(descriptor);
    return CannotOpen(path, std::strerror(error));
  }
  return descriptor;
}

absl::StatusOr<std::string> Meta(Database& database, std::string_view key) {
  Statement row = database.Prepare("SELECT value FROM meta WHERE key = ?");
  ATOLL_ASSIGN_OR_RETURN(const bool found, row.Bind(key).Step());
  if (!found) {
    return MakeError(absl::StatusCode::kDataLoss, "STORE_CORRUPT", fmt::format("table meta has no '{}'", key));
  }
  return row.Text();
}

}  // namespace

absl::StatusOr<std::unique_ptr<SqliteStore>> SqliteStore::Open(SqliteStoreOptions options) {
  const std::filesystem::path folder = std::filesystem::path(options.path).parent_path();
  std::error_code error;
  if (!folder.empty()) std::filesystem::create_directories(folder, error);
  if (error) return CannotOpen(folder.string(), error.message());
  ATOLL_ASSIGN_OR_RETURN(const int lock, LockStore(options.path));
  std::unique_ptr<SqliteStore> store(new SqliteStore(std::move(options), lock));
  if (absl::Status status = store->Prepare(); !status.ok()) {
    return WithContext(status, fmt::format("store {}", store->options_.path));
  }
  return store;
}

SqliteStore::~SqliteStore() {
  database_.reset();
  close(lock_descriptor_);
}

absl::Status SqliteStore::Prepare() {
  ATOLL_ASSIGN_OR_RETURN(database_, Database::Open(options_.path, options_.busy_timeout));
  ATOLL_RETURN_IF_ERROR(
      database_->Execute("PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; PRAGMA foreign_keys = ON"));
  Statement check = database_->Prepare("PRAGMA quick_check(1)");
  ATOLL_ASSIGN_OR_RETURN(const bool row, check.Step());
  if (const std::string result = row ? check.Text() : "no answer"; result != "ok") {
    return MakeError(absl::StatusCode::kDataLoss, "STORE_CORRUPT", fmt::format("quick_check: {}", result));
  }
  ATOLL_RETURN_IF_ERROR(Migrate(*database_));
  // A file that cannot be written is better found now than at the first grant.
  ATOLL_RETURN_IF_ERROR(
      database_->Execute("BEGIN IMMEDIATE; UPDATE meta SET value = value WHERE key = 'revision'; COMMIT"));
  return LoadMeta();
}

absl::StatusOr<int64_t> SqliteStore::MetaNumber(std::string_view key) {
  ATOLL_ASSIGN_OR_RETURN(const std::string text, Meta(*database_, key));
  int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error == std::errc() && end == text.data() + text.size()) return number;
  return MakeError(absl::StatusCode::kDataLoss, "STORE_CORRUPT",
                   fmt::format("{}: expected a number, found '{}'", key, text));
}

absl::Status SqliteStore::LoadMeta() {
  ATOLL_ASSIGN_OR_RETURN(epoch_, MetaNumber("store_epoch"));
  ATOLL_ASSIGN_OR_RETURN(const int64_t restored, MetaNumber("restored"));
  ATOLL_ASSIGN_OR_RETURN(const int64_t held, MetaNumber("collection_held"));
  ATOLL_ASSIGN_OR_RETURN(restored_epoch_, MetaNumber("restored_epoch"));
  restored_ = restored != 0;
  collection_held_ = held != 0;
  // One backup may be restored twice: each copy is a store of its own.
  if (restored_) return MarkRestored();
  ATOLL_ASSIGN_OR_RETURN(store_id_, Meta(*database_, "store_id"));
  return absl::OkStatus();
}

absl::Status SqliteStore::MarkRestored() {
  ATOLL_RETURN_IF_ERROR(Write("mark_restored", [&](Transaction&) {
    return database_
        ->Prepare(
            "UPDATE meta SET value = CASE key WHEN 'restored' THEN '1' ELSE lower(hex(randomblob(16))) END "
            "WHERE key IN ('restored', 'store_id')")
        .Run();
  }));
  restored_ = true;
  ATOLL_ASSIGN_OR_RETURN(store_id_, Meta(*database_, "store_id"));
  return absl::OkStatus();
}

absl::Status SqliteStore::Write(std::string_view name, const std::function<absl::Status(Transaction&)>& body) {
  ATOLL_RETURN_IF_ERROR(database_->Execute("BEGIN IMMEDIATE"));
  SqliteTransaction transaction(database_.get(), epoch_);
  absl::Status status = body(transaction);
  if (status.ok()) status = Failpoint(fmt::format("store.{}.before_commit", name));
  if (status.ok()) status = database_->Execute("COMMIT");
  if (!status.ok()) {
    // After some errors SQLite has already rolled back; saying so again is then an error that changes nothing.
    (void)database_->Execute("ROLLBACK");
    return status;
  }
  return Failpoint(fmt::format("store.{}.after_commit", name));
}

absl::Status SqliteStore::AdoptEpoch(int64_t epoch) {
  if (epoch <= epoch_) {
    return MakeError(absl::StatusCode::kInvalidArgument, "STORE_EPOCH_NOT_HIGHER",
                     fmt::format("store {}: expected an epoch above {}, found {}", options_.path, epoch_, epoch));
  }
  const std::string value = std::to_string(epoch);
  const auto adopt = [&](Transaction&) -> absl::Status {
    Statement update = database_->Prepare("UPDATE meta SET value = ? WHERE key = 'store_epoch'");
    ATOLL_RETURN_IF_ERROR(update.Bind(value).Run());
    if (!restored_) return absl::OkStatus();
    Statement hold = database_->Prepare(
        "UPDATE meta SET value = CASE key WHEN 'restored' THEN '0' WHEN 'collection_held' THEN '1' ELSE ? END "
        "WHERE key IN ('restored', 'collection_held', 'restored_epoch')");
    return hold.Bind(value).Run();
  };
  ATOLL_RETURN_IF_ERROR(Write("adopt_epoch", adopt));
  epoch_ = epoch;
  if (std::exchange(restored_, false)) {
    collection_held_ = true;
    restored_epoch_ = epoch;
  }
  return absl::OkStatus();
}

absl::Status SqliteStore::ReleaseCollection() {
  ATOLL_RETURN_IF_ERROR(Write("release_collection", [&](Transaction&) {
    return database_->Prepare("UPDATE meta SET value = '0' WHERE key = 'collection_held'").Run();
  }));
  collection_held_ = false;
  return absl::OkStatus();
}

absl::StatusOr<std::vector<jobs::JobRecord>> SqliteStore::UnfinishedJobs() {
  std::vector<jobs::JobRecord> records;
  Statement row =
      database_->Prepare(fmt::format("SELECT {} FROM jobs WHERE state IN (1, 2) ORDER BY sequence", kJobColumns));
  while (true) {
    ATOLL_ASSIGN_OR_RETURN(const bool found, row.Step());
    if (!found) break;
    ATOLL_ASSIGN_OR_RETURN(jobs::Job job, ReadJob(row));
    records.push_back({std::move(job), {}});
  }
  for (jobs::JobRecord& record : records) {
    ATOLL_ASSIGN_OR_RETURN(record.tasks, ReadTasks(*database_, record.job.job_id));
  }
  return records;
}

absl::StatusOr<jobs::JobRecord> SqliteStore::GetJob(std::string_view job_id) {
  jobs::JobRecord record;
  Statement row = database_->Prepare(fmt::format("SELECT {} FROM jobs WHERE job_id = ?", kJobColumns));
  ATOLL_ASSIGN_OR_RETURN(const bool found, row.Bind(job_id).Step());
  if (!found) return MakeError(absl::StatusCode::kNotFound, "JOB_UNKNOWN", fmt::format("there is no job '{}'", job_id));
  ATOLL_ASSIGN_OR_RETURN(record.job, ReadJob(row));
  ATOLL_ASSIGN_OR_RETURN(record.tasks, ReadTasks(*database_, job_id));
  return record;
}

absl::StatusOr<std::map<std::string, spec::Progress, std::less<>>> SqliteStore::FinalProgress(std::string_view job_id) {
  std::map<std::string, spec::Progress, std::less<>> progress;
  Statement row = database_->Prepare(
      "SELECT task_id, progress FROM final_progress WHERE task_id IN (SELECT task_id FROM tasks WHERE job_id = ?)");
  row.Bind(job_id);
  while (true) {
    ATOLL_ASSIGN_OR_RETURN(const bool found, row.Step());
    if (!found) return progress;
    std::string task_id = row.Text();
    ATOLL_ASSIGN_OR_RETURN(progress[task_id], ProgressFromJson(row.Text()));
  }
}

absl::StatusOr<Store::JobPage> SqliteStore::ListJobs(int64_t before, int32_t limit) {
  JobPage page;
  Statement row = database_->Prepare(fmt::format(
      "SELECT {}, sequence FROM jobs WHERE ? = 0 OR sequence < ? ORDER BY sequence DESC LIMIT ?", kJobColumns));
  row.Bind(before).Bind(before).Bind(int64_t{limit} + 1);
  int64_t last = 0;
  while (true) {
    ATOLL_ASSIGN_OR_RETURN(const bool found, row.Step());
    if (!found) return page;
    if (page.jobs.size() == static_cast<size_t>(limit)) {
      page.next = last;
      return page;
    }
    ATOLL_ASSIGN_OR_RETURN(jobs::Job job, ReadJob(row));
    page.jobs.push_back(std::move(job));
    last = row.Int();
  }
}

absl::StatusOr<std::vector<AttemptRow>> SqliteStore::ActiveAttempts() {
  std::vector<AttemptRow> attempts;
  Statement row =
      database_->Prepare(fmt::format("SELECT {} FROM attempts WHERE outcome = 1 ORDER BY task_id", kAttemptColumns));
  while (true) {
    ATOLL_ASSIGN_OR_RETURN(const bool found, row.Step());
    if (!found) return attempts;
    attempts.push_back(ReadAttempt(row));
  }
}

absl::StatusOr<std::optional<AttemptRow>> SqliteStore::GetAttempt(std::string_view task_id, int64_t attempt) {
  Statement row =
      database_->Prepare(fmt::format("SELECT {} FROM attempts WHERE task_id = ? AND attempt = ?", kAttemptColumns));
  ATOLL_ASSIGN_OR_RETURN(const bool found, row.Bind(task_id).Bind(attempt).Step());
  if (!found) return std::optional<AttemptRow>();
  return std::optional<AttemptRow>(ReadAttempt(row));
}

absl::StatusOr<std::vector<AttemptRow>> SqliteStore::Attempts(std::string_view task_id) {
  std::vector<AttemptRow> attempts;
  Statement row =
      database_->Prepare(fmt::format("SELECT {} FROM attempts WHERE task_id = ? ORDER BY attempt", kAttemptColumns));
  row.Bind(task_id);
  while (true) {
    ATOLL_ASSIGN_OR_RETURN(const bool found, row.Step());
    if (!found) return attempts;
    attempts.push_back(ReadAttempt(row));
  }
}

absl::StatusOr<std::vector<CheckpointRow>> SqliteStore::Checkpoints(std::string_view task_id) {
  return ReadCheckpoints(*database_, task_id);
}

absl::StatusOr<std::vector<std::string>> SqliteStore::ArtifactUris() {
  std::vector<std::string> uris;
  Statement row = database_->Prepare("SELECT uri FROM artifacts");
  while (true) {
    ATOLL_ASSIGN_OR_RETURN(const bool found, row.Step());
    if (!found) return uris;
    uris.push_back(row.Text());
  }
}

absl::StatusOr<std::vector<DeletedJob>> SqliteStore::DeletedJobs() {
  std::vector<DeletedJob> jobs;
  Statement row = database_->Prepare("SELECT job_id, delete_time FROM deleted_jobs");
  while (true) {
    ATOLL_ASSIGN_OR_RETURN(const bool found, row.Step());
    if (!found) return jobs;
    DeletedJob& job = jobs.emplace_back();
    job.job_id = row.Text();
    job.delete_time = row.Time();
  }
}

absl::StatusOr<std::vector<leases::Island>> SqliteStore::Islands() {
  std::vector<leases::Island> islands;
  Statement row = database_->Prepare("SELECT island_id, incarnation, request_id, capabilities FROM islands");
  while (true) {
    ATOLL_ASSIGN_OR_RETURN(const bool found, row.Step());
    if (!found) return islands;
    leases::Island& island = islands.emplace_back();
    island.island_id = row.Text();
    island.incarnation = row.Int();
    island.request_id = row.Text();
    ATOLL_ASSIGN_OR_RETURN(island.capabilities, CapabilitiesFromJson(row.Text()));
  }
}

absl::StatusOr<Model> SqliteStore::GetModel(std::string_view name) {
  Model model;
  model.name = name;
  Statement serving = database_->Prepare(fmt::format("SELECT {} FROM serving WHERE name = ?", kServingColumns));
  ATOLL_ASSIGN_OR_RETURN(const bool found, serving.Bind(name).Step());
  if (!found) {
    return MakeError(absl::StatusCode::kNotFound, "MODEL_UNKNOWN", fmt::format("there is no model '{}'", name));
  }
  model.serving = ReadServing(serving);
  Statement row = database_->Prepare(
      fmt::format("SELECT {} FROM model_versions WHERE name = ? ORDER BY sequence DESC", kModelVersionColumns));
  row.Bind(name);
  while (true) {
    ATOLL_ASSIGN_OR_RETURN(const bool more, row.Step());
    if (!more) return model;
    model.versions.push_back(ReadModelVersion(row));
  }
}

absl::StatusOr<std::vector<Model>> SqliteStore::ListModels(std::string_view after, int32_t limit) {
  std::vector<std::string> names;
  {
    Statement row = database_->Prepare("SELECT name FROM serving WHERE name > ? ORDER BY name LIMIT ?");
    row.Bind(after).Bind(int64_t{limit});
    while (true) {
      ATOLL_ASSIGN_OR_RETURN(const bool found, row.Step());
      if (!found) break;
      names.push_back(row.Text());
    }
  }
  std::vector<Model> models;
  for (const std::string& name : names) {
    ATOLL_ASSIGN_OR_RETURN(Model model, GetModel(name));
    models.push_back(std::move(model));
  }
  return models;
}

absl::StatusOr<std::vector<ServingRow>> SqliteStore::ServingHistory(std::string_view name) {
  std::vector<ServingRow> history;
  Statement row = database_->Prepare(
      fmt::format("SELECT {} FROM serving_history WHERE name = ? ORDER BY generation", kServingColumns));
  row.Bind(name);
  while (true) {
    ATOLL_ASSIGN_OR_RETURN(const bool found, row.Step());
    if (!found) return history;
    history.push_back(ReadServing(row));
  }
}

}  // namespace atl::store
