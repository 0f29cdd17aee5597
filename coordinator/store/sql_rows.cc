#include "coordinator/store/sql_rows.h"

#include <limits>
#include <map>
#include <unordered_map>
#include <utility>

#include "common/base/errors.h"
#include "common/base/status_macros.h"
#include "common/spec/spec_io.h"
#include "fmt/format.h"
#include "nlohmann/json.hpp"

namespace atl::store {
namespace {

// In the order in which ReadTask and ReadArtifact read them.
constexpr std::string_view kTaskColumns =
    "task_id, kind, task_index, state, attempt, island_id, committed_step, attempt_committed, failures, message, "
    "move_from, move_to, move_until, depends_on";
constexpr std::string_view kArtifactColumns = "name, uri, bytes, sha256, rows";
constexpr std::string_view kUnfinished = "SELECT job_id FROM jobs WHERE state IN (1, 2)";

spec::Artifact ReadArtifact(Statement& row) {
  spec::Artifact artifact;
  artifact.name = row.Text();
  artifact.uri = row.Text();
  artifact.bytes = row.Int();
  artifact.sha256 = row.Text();
  artifact.rows = row.Int();
  return artifact;
}

absl::StatusOr<std::vector<spec::Artifact>> ReadArtifacts(Database& database, std::string_view task_id) {
  Statement row =
      database.Prepare(fmt::format("SELECT {} FROM artifacts WHERE task_id = ? ORDER BY position", kArtifactColumns));
  return ReadRows(row.Bind(task_id), ReadArtifact);
}

// Reads rollbacks by task, for the jobs that the query `selected` returns; `job_id`, if given, binds its question mark.
absl::StatusOr<std::map<std::string, std::vector<jobs::Rollback>>> ReadRollbacks(Database& database,
                                                                                 std::string_view selected,
                                                                                 std::string_view job_id = "") {
  std::map<std::string, std::vector<jobs::Rollback>> rollbacks;
  Statement row = database.Prepare(fmt::format(
      "SELECT {} FROM rollbacks WHERE task_id IN (SELECT task_id FROM tasks WHERE job_id IN ({})) ORDER BY task_id, "
      "attempt",
      kRollbackColumns, selected));
  if (!job_id.empty()) row.Bind(job_id);
  ATOLL_RETURN_IF_ERROR(ForEachRow(row, [&](Statement&) {
    const std::string task_id = row.Text();
    jobs::Rollback& rollback = rollbacks[task_id].emplace_back();
    rollback.attempt = row.Int();
    rollback.from_step = row.Int();
    rollback.to_step = row.Int();
    rollback.skipped.first_step = row.Int();
    rollback.skipped.steps = row.Int();
    rollback.reason = row.Text();
    rollback.message = row.Text();
    rollback.evidence_uri = row.Text();
    rollback.time = row.Time();
    return absl::OkStatus();
  }));
  return rollbacks;
}

jobs::Task ReadTask(Statement& row) {
  jobs::Task task;
  task.task_id = row.Text();
  task.kind = static_cast<spec::TaskKind>(row.Int());
  task.index = static_cast<int32_t>(row.Int());
  task.state = static_cast<jobs::TaskState>(row.Int());
  task.attempt = row.Int();
  task.island_id = row.Text();
  task.committed_step = row.Int();
  task.attempt_committed = row.Int() != 0;
  task.failures = static_cast<int32_t>(row.Int());
  task.message = row.Text();
  task.move.from = row.Text();
  task.move.to = row.Text();
  task.move.until = row.Time();
  task.depends_on = SplitLines(row.Text());
  return task;
}

}  // namespace

std::string JoinLines(const std::vector<std::string>& lines) {
  std::string text;
  for (const std::string& line : lines) text += line + "\n";
  return text;
}

std::vector<std::string> SplitLines(std::string_view text) {
  std::vector<std::string> lines;
  while (!text.empty()) {
    const size_t end = text.find('\n');
    lines.emplace_back(text.substr(0, end));
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  }
  return lines;
}

absl::StatusOr<jobs::Job> ReadJob(Statement& row) {
  jobs::Job job;
  job.job_id = row.Text();
  absl::StatusOr<spec::JobSpec> spec = spec::ParseStoredJobSpec(row.Text(), "stored spec of job " + job.job_id);
  if (!spec.ok()) {
    return MakeError(absl::StatusCode::kDataLoss, "STORE_CORRUPT", std::string(spec.status().message()));
  }
  job.spec = *std::move(spec);
  job.dataset_manifest_uri = row.Text();
  job.state = static_cast<jobs::JobState>(row.Int());
  job.create_time = row.Time();
  job.end_time = row.Time();
  job.message = row.Text();
  job.model_version = row.Text();
  job.revision = row.Int();
  job.owner = row.Text();
  return job;
}

absl::StatusOr<std::vector<jobs::Task>> ReadTasks(Database& database, std::string_view job_id) {
  Statement row =
      database.Prepare(fmt::format("SELECT {} FROM tasks WHERE job_id = ? ORDER BY position", kTaskColumns));
  ATOLL_ASSIGN_OR_RETURN(std::vector<jobs::Task> tasks, ReadRows(row.Bind(job_id), ReadTask));
  for (jobs::Task& task : tasks) {
    // Written when the task succeeds, and not before.
    if (task.state != jobs::TaskState::kSucceeded) continue;
    ATOLL_ASSIGN_OR_RETURN(task.outputs, ReadArtifacts(database, task.task_id));
  }
  ATOLL_ASSIGN_OR_RETURN(auto rollbacks, ReadRollbacks(database, "?", job_id));
  if (rollbacks.empty()) return tasks;
  for (jobs::Task& task : tasks) task.rollbacks = std::move(rollbacks[task.task_id]);
  return tasks;
}

absl::StatusOr<std::vector<jobs::JobRecord>> ReadUnfinishedJobs(Database& database) {
  std::unordered_map<std::string, std::vector<spec::Artifact>> outputs;
  Statement artifact = database.Prepare(
      fmt::format("SELECT task_id, {} FROM artifacts WHERE task_id IN (SELECT task_id FROM tasks WHERE job_id IN ({})) "
                  "ORDER BY task_id, position",
                  kArtifactColumns, kUnfinished));
  ATOLL_RETURN_IF_ERROR(ForEachRow(artifact, [&](Statement& row) {
    std::vector<spec::Artifact>& of_task = outputs[row.Text()];
    of_task.push_back(ReadArtifact(row));
    return absl::OkStatus();
  }));
  ATOLL_ASSIGN_OR_RETURN(auto rollbacks, ReadRollbacks(database, kUnfinished));
  std::unordered_map<std::string, std::vector<jobs::Task>> tasks;
  Statement task = database.Prepare(fmt::format(
      "SELECT job_id, {} FROM tasks WHERE job_id IN ({}) ORDER BY job_id, position", kTaskColumns, kUnfinished));
  ATOLL_RETURN_IF_ERROR(ForEachRow(task, [&](Statement& row) {
    std::vector<jobs::Task>& of_job = tasks[row.Text()];
    of_job.push_back(ReadTask(row));
    if (auto made = outputs.extract(of_job.back().task_id)) of_job.back().outputs = std::move(made.mapped());
    if (auto known = rollbacks.extract(of_job.back().task_id)) of_job.back().rollbacks = std::move(known.mapped());
    return absl::OkStatus();
  }));
  std::vector<jobs::JobRecord> records;
  Statement job =
      database.Prepare(fmt::format("SELECT {} FROM jobs WHERE state IN (1, 2) ORDER BY sequence", kJobColumns));
  ATOLL_RETURN_IF_ERROR(ForEachRow(job, [&](Statement& row) -> absl::Status {
    jobs::JobRecord& record = records.emplace_back();
    ATOLL_ASSIGN_OR_RETURN(record.job, ReadJob(row));
    if (auto of_job = tasks.extract(record.job.job_id)) record.tasks = std::move(of_job.mapped());
    return absl::OkStatus();
  }));
  return records;
}

AttemptRow ReadAttempt(Statement& row) {
  AttemptRow attempt;
  attempt.task_id = row.Text();
  attempt.attempt = row.Int();
  attempt.store_epoch = row.Int();
  attempt.island_id = row.Text();
  attempt.incarnation = row.Int();
  attempt.secret_sha256 = row.Text();
  attempt.outcome = static_cast<jobs::AttemptOutcome>(row.Int());
  attempt.message = row.Text();
  attempt.start_time = row.Time();
  attempt.end_time = row.Time();
  attempt.code = row.Text();
  return attempt;
}

CheckpointRow ReadCheckpoint(Statement& row) {
  CheckpointRow checkpoint;
  checkpoint.task_id = row.Text();
  checkpoint.attempt = row.Int();
  checkpoint.checkpoint.step = row.Int();
  checkpoint.checkpoint.manifest_uri = row.Text();
  checkpoint.checkpoint.manifest_sha256 = row.Text();
  checkpoint.checkpoint.milestone = row.Int() != 0;
  checkpoint.state = static_cast<CheckpointState>(row.Int());
  checkpoint.commit_time = row.Time();
  return checkpoint;
}

absl::StatusOr<std::vector<CheckpointRow>> ReadCheckpoints(Database& database, std::string_view task_id) {
  const std::string where = task_id.empty() ? "" : "WHERE task_id = ? ";
  Statement row = database.Prepare(
      fmt::format("SELECT {} FROM checkpoints {}ORDER BY task_id, step, attempt", kCheckpointColumns, where));
  if (!task_id.empty()) row.Bind(task_id);
  return ReadRows(row, ReadCheckpoint);
}

ModelVersionRow ReadModelVersion(Statement& row) {
  ModelVersionRow version;
  version.name = row.Text();
  version.version = row.Text();
  version.job_id = row.Text();
  version.uri = row.Text();
  version.digest = row.Text();
  version.experts = static_cast<int32_t>(row.Int());
  version.publish_time = row.Time();
  return version;
}

ServingRow ReadServing(Statement& row) {
  ServingRow serving;
  serving.name = row.Text();
  serving.version = row.Text();
  serving.generation = row.Int();
  serving.change_time = row.Time();
  serving.cause = row.Text();
  return serving;
}

std::string ProgressToJson(const spec::Progress& p) {
  return nlohmann::json{{"step", p.step},
                        {"total_steps", p.total_steps},
                        {"loss", p.loss},
                        {"samples_per_second", p.samples_per_second},
                        {"metrics", p.metrics}}
      .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

absl::StatusOr<spec::Progress> ProgressFromJson(std::string_view text) {
  // JSON has no NaN: it is written as null.
  const auto number = [](const nlohmann::json& json) {
    return json.is_null() ? std::numeric_limits<double>::quiet_NaN() : json.get<double>();
  };
  try {
    const nlohmann::json json = nlohmann::json::parse(text);
    spec::Progress p;
    p.step = json.at("step").get<int64_t>();
    p.total_steps = json.at("total_steps").get<int64_t>();
    p.loss = number(json.at("loss"));
    p.samples_per_second = number(json.at("samples_per_second"));
    for (const auto& [name, value] : json.at("metrics").items()) p.metrics[name] = number(value);
    return p;
  } catch (const nlohmann::json::exception& error) {
    return MakeError(absl::StatusCode::kDataLoss, "STORE_CORRUPT",
                     fmt::format("stored progress of a task: {}", error.what()));
  }
}

std::string CapabilitiesToJson(const leases::Capabilities& c) {
  return nlohmann::json{{"build", c.build},
                        {"protocol", {c.protocol.min, c.protocol.max}},
                        {"format", {c.format.min, c.format.max}},
                        {"ranks", c.ranks},
                        {"device_kind", c.device_kind},
                        {"device_name", c.device_name},
                        {"memory_bytes_per_rank", c.memory_bytes_per_rank},
                        {"labels", c.labels}}
      .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

absl::StatusOr<leases::Capabilities> CapabilitiesFromJson(std::string_view text) {
  try {
    const nlohmann::json json = nlohmann::json::parse(text);
    leases::Capabilities c;
    c.build = json.at("build").get<std::string>();
    c.protocol = {json.at("protocol").at(0).get<int32_t>(), json.at("protocol").at(1).get<int32_t>()};
    c.format = {json.at("format").at(0).get<int32_t>(), json.at("format").at(1).get<int32_t>()};
    c.ranks = json.at("ranks").get<int32_t>();
    c.device_kind = json.at("device_kind").get<std::string>();
    c.device_name = json.at("device_name").get<std::string>();
    c.memory_bytes_per_rank = json.at("memory_bytes_per_rank").get<int64_t>();
    c.labels = json.at("labels").get<std::map<std::string, std::string>>();
    return c;
  } catch (const nlohmann::json::exception& error) {
    return MakeError(absl::StatusCode::kDataLoss, "STORE_CORRUPT",
                     fmt::format("stored capabilities of an island: {}", error.what()));
  }
}

}  // namespace atl::store
