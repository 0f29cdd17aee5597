#include "coordinator/store/store.h"

#include <charconv>
#include <random>
#include <utility>

#include "common/base/errors.h"
#include "common/base/failpoint.h"
#include "common/base/status_macros.h"
#include "coordinator/store/migrations.h"
#include "coordinator/store/sql_rows.h"
#include "fmt/format.h"

namespace atl::store {
namespace {

// The limit on the specs of a page of jobs, in characters of their JSON. A message takes at most four bytes for each,
// so a page is far smaller than the largest message (common/rpc/channel.h), whatever the sizes of accepted specs.
constexpr int64_t kMaxPageLetters = int64_t{8} << 20;

absl::StatusOr<std::string> Meta(Database& database, std::string_view key) {
  Statement row = database.Prepare("SELECT value FROM meta WHERE key = ?");
  ATOLL_ASSIGN_OR_RETURN(const bool found, row.Bind(key).Step());
  if (!found) {
    return MakeError(absl::StatusCode::kDataLoss, "STORE_CORRUPT", fmt::format("table meta has no '{}'", key));
  }
  return row.Text();
}

absl::Status SetMeta(Database& database, std::string_view key, std::string_view value) {
  return database.Prepare("UPDATE meta SET value = ? WHERE key = ?").Bind(value).Bind(key).Run();
}

std::string NewStoreId() {
  std::random_device random;
  return fmt::format("{:08x}{:08x}{:08x}{:08x}", random(), random(), random(), random());
}

}  // namespace

Store::Store(std::string name, OnStoreLost on_lost) : name_(std::move(name)), on_lost_(std::move(on_lost)) {}
Store::~Store() = default;

void Store::CloseDatabase() {
  database_.reset();
}

absl::Status Store::Load(std::unique_ptr<Database> database) {
  database_ = std::move(database);
  ATOLL_RETURN_IF_ERROR(Migrate(*database_));
  // A file that cannot be written is better found now than at the first grant.
  ATOLL_RETURN_IF_ERROR(Write("open", [&](Transaction&) {
    return database_->Prepare("UPDATE meta SET value = value WHERE key = 'revision'").Run();
  }));
  return LoadMeta();
}

absl::StatusOr<int64_t> Store::MetaNumber(std::string_view key) {
  ATOLL_ASSIGN_OR_RETURN(const std::string text, Meta(*database_, key));
  int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error == std::errc() && end == text.data() + text.size()) return number;
  return MakeError(absl::StatusCode::kDataLoss, "STORE_CORRUPT",
                   fmt::format("{}: expected a number, found '{}'", key, text));
}

absl::Status Store::LoadMeta() {
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

absl::Status Store::MarkRestored() {
  const std::string store_id = NewStoreId();
  ATOLL_RETURN_IF_ERROR(Write("mark_restored", [&](Transaction&) -> absl::Status {
    ATOLL_RETURN_IF_ERROR(SetMeta(*database_, "restored", "1"));
    return SetMeta(*database_, "store_id", store_id);
  }));
  restored_ = true;
  store_id_ = store_id;
  return absl::OkStatus();
}

absl::Status Store::Judge(const absl::Status& status) {
  const std::string reason = ErrorReason(status);
  if (reason != "STORE_OUTCOME_UNKNOWN" && reason != "STORE_SUPERSEDED") return status;
  lost_ = status;
  if (on_lost_) on_lost_(status);
  return status;
}

absl::Status Store::Write(std::string_view name, const std::function<absl::Status(Transaction&)>& body) {
  ATOLL_RETURN_IF_ERROR(lost_);
  if (absl::Status status = database_->Begin(); !status.ok()) return Judge(status);
  Transaction transaction(database_.get(), epoch_);
  absl::Status status = body(transaction);
  if (status.ok()) status = Failpoint(fmt::format("store.{}.before_commit", name));
  if (status.ok()) status = Judge(database_->Commit());
  if (!status.ok()) {
    database_->Rollback();
    return status;
  }
  status = Failpoint(fmt::format("store.{}.after_commit", name));
  return status.ok() ? status : Judge(OutcomeUnknown(status));
}

absl::Status Store::AdoptEpoch(int64_t epoch) {
  if (epoch <= epoch_) {
    return MakeError(absl::StatusCode::kInvalidArgument, "STORE_EPOCH_NOT_HIGHER",
                     fmt::format("store {}: expected an epoch above {}, found {}", name_, epoch_, epoch));
  }
  const std::string value = std::to_string(epoch);
  const auto adopt = [&](Transaction&) -> absl::Status {
    ATOLL_RETURN_IF_ERROR(SetMeta(*database_, "store_epoch", value));
    if (!restored_) return absl::OkStatus();
    ATOLL_RETURN_IF_ERROR(SetMeta(*database_, "restored", "0"));
    ATOLL_RETURN_IF_ERROR(SetMeta(*database_, "collection_held", "1"));
    return SetMeta(*database_, "restored_epoch", value);
  };
  ATOLL_RETURN_IF_ERROR(Write("adopt_epoch", adopt));
  epoch_ = epoch;
  if (std::exchange(restored_, false)) {
    collection_held_ = true;
    restored_epoch_ = epoch;
  }
  return absl::OkStatus();
}

absl::Status Store::ReleaseCollection() {
  ATOLL_RETURN_IF_ERROR(
      Write("release_collection", [&](Transaction&) { return SetMeta(*database_, "collection_held", "0"); }));
  collection_held_ = false;
  return absl::OkStatus();
}

absl::StatusOr<std::vector<jobs::JobRecord>> Store::UnfinishedJobs() {
  return ReadUnfinishedJobs(*database_);
}

absl::StatusOr<jobs::JobRecord> Store::GetJob(std::string_view job_id) {
  jobs::JobRecord record;
  Statement row = database_->Prepare(fmt::format("SELECT {} FROM jobs WHERE job_id = ?", kJobColumns));
  ATOLL_ASSIGN_OR_RETURN(const bool found, row.Bind(job_id).Step());
  if (!found) return MakeError(absl::StatusCode::kNotFound, "JOB_UNKNOWN", fmt::format("there is no job '{}'", job_id));
  ATOLL_ASSIGN_OR_RETURN(record.job, ReadJob(row));
  ATOLL_ASSIGN_OR_RETURN(record.tasks, ReadTasks(*database_, job_id));
  return record;
}

absl::StatusOr<std::map<std::string, spec::Progress, std::less<>>> Store::FinalProgress(std::string_view job_id) {
  std::map<std::string, spec::Progress, std::less<>> progress;
  Statement row = database_->Prepare(
      "SELECT task_id, progress FROM final_progress WHERE task_id IN (SELECT task_id FROM tasks WHERE job_id = ?)");
  ATOLL_RETURN_IF_ERROR(ForEachRow(row.Bind(job_id), [&](Statement&) -> absl::Status {
    std::string task_id = row.Text();
    ATOLL_ASSIGN_OR_RETURN(progress[task_id], ProgressFromJson(row.Text()));
    return absl::OkStatus();
  }));
  return progress;
}

absl::StatusOr<Store::JobPage> Store::ListJobs(int64_t before, int32_t limit) {
  JobPage page;
  Statement row = database_->Prepare(fmt::format(
      "SELECT {}, sequence, LENGTH(spec) FROM jobs WHERE ? = 0 OR sequence < ? ORDER BY sequence DESC LIMIT ?",
      kJobColumns));
  row.Bind(before).Bind(before).Bind(int64_t{limit} + 1);
  int64_t last = 0;
  int64_t letters = 0;
  while (true) {
    ATOLL_ASSIGN_OR_RETURN(const bool found, row.Step());
    if (!found) return page;
    if (page.jobs.size() == static_cast<size_t>(limit)) {
      page.next = last;
      return page;
    }
    ATOLL_ASSIGN_OR_RETURN(jobs::Job job, ReadJob(row));
    const int64_t sequence = row.Int();
    letters += row.Int();
    if (letters > kMaxPageLetters && !page.jobs.empty()) {
      page.next = last;
      return page;
    }
    page.jobs.push_back(std::move(job));
    last = sequence;
  }
}

absl::StatusOr<std::vector<AttemptRow>> Store::ActiveAttempts() {
  Statement row =
      database_->Prepare(fmt::format("SELECT {} FROM attempts WHERE outcome = 1 ORDER BY task_id", kAttemptColumns));
  return ReadRows(row, ReadAttempt);
}

absl::StatusOr<std::optional<AttemptRow>> Store::GetAttempt(std::string_view task_id, int64_t attempt) {
  Statement row =
      database_->Prepare(fmt::format("SELECT {} FROM attempts WHERE task_id = ? AND attempt = ?", kAttemptColumns));
  ATOLL_ASSIGN_OR_RETURN(const bool found, row.Bind(task_id).Bind(attempt).Step());
  if (!found) return std::optional<AttemptRow>();
  return std::optional<AttemptRow>(ReadAttempt(row));
}

absl::StatusOr<std::vector<AttemptRow>> Store::Attempts(std::string_view task_id) {
  Statement row =
      database_->Prepare(fmt::format("SELECT {} FROM attempts WHERE task_id = ? ORDER BY attempt", kAttemptColumns));
  return ReadRows(row.Bind(task_id), ReadAttempt);
}

absl::StatusOr<std::vector<CheckpointRow>> Store::Checkpoints(std::string_view task_id) {
  return ReadCheckpoints(*database_, task_id);
}

absl::StatusOr<std::vector<std::string>> Store::ArtifactUris() {
  Statement row = database_->Prepare("SELECT uri FROM artifacts");
  return ReadRows(row, [](Statement& uri) { return uri.Text(); });
}

absl::StatusOr<std::vector<DeletedJob>> Store::DeletedJobs() {
  Statement row = database_->Prepare("SELECT job_id, delete_time FROM deleted_jobs");
  return ReadRows(row, [](Statement& job) { return DeletedJob{.job_id = job.Text(), .delete_time = job.Time()}; });
}

absl::StatusOr<std::vector<leases::Island>> Store::Islands() {
  std::vector<leases::Island> islands;
  Statement row = database_->Prepare(
      "SELECT island_id, incarnation, request_id, capabilities, drain_reason, register_time FROM islands");
  ATOLL_RETURN_IF_ERROR(ForEachRow(row, [&](Statement&) -> absl::Status {
    leases::Island& island = islands.emplace_back();
    island.island_id = row.Text();
    island.incarnation = row.Int();
    island.request_id = row.Text();
    ATOLL_ASSIGN_OR_RETURN(island.capabilities, CapabilitiesFromJson(row.Text()));
    island.drain_reason = row.Text();
    island.register_time = row.Time();
    return absl::OkStatus();
  }));
  return islands;
}

absl::StatusOr<Model> Store::GetModel(std::string_view name) {
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
  ATOLL_ASSIGN_OR_RETURN(model.versions, ReadRows(row.Bind(name), ReadModelVersion));
  return model;
}

absl::StatusOr<std::vector<Model>> Store::ListModels(std::string_view after, int32_t limit) {
  Statement row = database_->Prepare("SELECT name FROM serving WHERE name > ? ORDER BY name LIMIT ?");
  row.Bind(after).Bind(int64_t{limit});
  ATOLL_ASSIGN_OR_RETURN(const std::vector<std::string> names,
                         ReadRows(row, [](Statement& name) { return name.Text(); }));
  std::vector<Model> models;
  for (const std::string& name : names) {
    ATOLL_ASSIGN_OR_RETURN(Model model, GetModel(name));
    models.push_back(std::move(model));
  }
  return models;
}

absl::StatusOr<std::vector<ServingRow>> Store::ServingHistory(std::string_view name) {
  Statement row = database_->Prepare(
      fmt::format("SELECT {} FROM serving_history WHERE name = ? ORDER BY generation", kServingColumns));
  return ReadRows(row.Bind(name), ReadServing);
}

}  // namespace atl::store
