// The transactions of a store.
#include "common/base/errors.h"
#include "common/base/status_macros.h"
#include "common/spec/spec_io.h"
#include "coordinator/leases/attempt_secret.h"
#include "coordinator/leases/lease.h"
#include "coordinator/store/sql_rows.h"
#include "coordinator/store/store.h"
#include "fmt/format.h"

namespace atl::store {

absl::Status Transaction::ChangeOne(Statement& statement, std::string_view what) {
  ATOLL_RETURN_IF_ERROR(statement.Run());
  if (database_.changes() == 1) return absl::OkStatus();
  return MakeError(absl::StatusCode::kInternal, "STORE_ERROR",
                   fmt::format("{}: expected to change 1 row, changed {}", what, database_.changes()));
}

absl::Status Transaction::CheckFence(const spec::LeaseToken& token) {
  if (token.store_epoch != store_epoch_) {
    return leases::StaleAttempt(token, fmt::format("the store's epoch is {}", store_epoch_));
  }
  Statement row =
      database_.Prepare("SELECT attempt, store_epoch, secret_sha256 FROM attempts WHERE task_id = ? AND outcome = 1");
  ATOLL_ASSIGN_OR_RETURN(const bool found, row.Bind(token.task_id).Step());
  if (!found) return leases::StaleAttempt(token, "the task has no active attempt");
  const int64_t attempt = row.Int();
  const int64_t epoch = row.Int();
  if (attempt != token.attempt || epoch != token.store_epoch) {
    return leases::StaleAttempt(token, fmt::format("the active attempt is {} of epoch {}", attempt, epoch));
  }
  if (!leases::IsHashOf(row.Text(), token.attempt_secret)) {
    return leases::StaleAttempt(token, "the attempt's secret is another");
  }
  return absl::OkStatus();
}

absl::StatusOr<int64_t> Transaction::NextRevision() {
  if (revision_) return *revision_;
  Statement update = database_.Prepare(
      "UPDATE meta SET value = CAST(value AS BIGINT) + 1 WHERE key = 'revision' RETURNING CAST(value AS BIGINT)");
  ATOLL_ASSIGN_OR_RETURN(const bool found, update.Step());
  if (!found) return MakeError(absl::StatusCode::kDataLoss, "STORE_CORRUPT", "the store has no revision");
  revision_ = update.Int();
  // A statement with RETURNING must be run to its end before the transaction may commit.
  ATOLL_RETURN_IF_ERROR(update.Step().status());
  return *revision_;
}

absl::Status Transaction::InsertJob(const jobs::JobRecord& record) {
  const jobs::Job& job = record.job;
  Statement insert =
      database_.Prepare(fmt::format("INSERT INTO jobs ({}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", kJobColumns));
  insert.Bind(job.job_id).Bind(spec::ToJson(job.spec)).Bind(job.dataset_manifest_uri);
  insert.Bind(static_cast<int64_t>(job.state)).Bind(job.create_time).Bind(job.end_time);
  insert.Bind(job.message).Bind(job.model_version).Bind(job.revision);
  ATOLL_RETURN_IF_ERROR(insert.Bind(job.owner).Run());
  int64_t position = 0;
  for (const jobs::Task& task : record.tasks) {
    Statement row = database_.Prepare(
        "INSERT INTO tasks (task_id, job_id, position, kind, task_index, state, attempt, island_id, committed_step, "
        "attempt_committed, failures, message, depends_on) VALUES (?, ?, ?, ?, ?, ?, 0, '', 0, 0, 0, '', ?)");
    row.Bind(task.task_id).Bind(job.job_id).Bind(position++).Bind(static_cast<int64_t>(task.kind));
    row.Bind(int64_t{task.index}).Bind(static_cast<int64_t>(task.state)).Bind(JoinLines(task.depends_on));
    ATOLL_RETURN_IF_ERROR(row.Run());
  }
  return absl::OkStatus();
}

absl::Status Transaction::UpdateJob(const jobs::Job& job) {
  Statement update = database_.Prepare(
      "UPDATE jobs SET state = ?, end_time = ?, message = ?, model_version = ?, revision = ? WHERE job_id = ?");
  update.Bind(static_cast<int64_t>(job.state)).Bind(job.end_time).Bind(job.message).Bind(job.model_version);
  update.Bind(job.revision).Bind(job.job_id);
  return ChangeOne(update, "updating job " + job.job_id);
}

absl::Status Transaction::UpdateTask(const jobs::Task& task) {
  Statement update = database_.Prepare(
      "UPDATE tasks SET state = ?, attempt = ?, island_id = ?, committed_step = ?, attempt_committed = ?, failures = "
      "?, message = ?, move_from = ?, move_to = ?, move_until = ? WHERE task_id = ?");
  update.Bind(static_cast<int64_t>(task.state)).Bind(task.attempt).Bind(task.island_id).Bind(task.committed_step);
  update.Bind(int64_t{task.attempt_committed}).Bind(int64_t{task.failures}).Bind(task.message);
  update.Bind(task.move.from).Bind(task.move.to).Bind(task.move.until).Bind(task.task_id);
  ATOLL_RETURN_IF_ERROR(ChangeOne(update, "updating task " + task.task_id));
  return WriteOutputs(task);
}

absl::Status Transaction::WriteOutputs(const jobs::Task& task) {
  // Outputs are written once, when the task succeeds.
  if (task.state != jobs::TaskState::kSucceeded) return absl::OkStatus();
  int64_t position = 0;
  for (const spec::Artifact& artifact : task.outputs) {
    Statement insert = database_.Prepare(
        "INSERT INTO artifacts (task_id, position, name, uri, bytes, sha256, rows) VALUES (?, ?, ?, ?, ?, ?, ?)");
    insert.Bind(task.task_id).Bind(position++).Bind(artifact.name).Bind(artifact.uri).Bind(artifact.bytes);
    ATOLL_RETURN_IF_ERROR(insert.Bind(artifact.sha256).Bind(artifact.rows).Run());
  }
  return absl::OkStatus();
}

absl::Status Transaction::InsertFinalProgress(std::string_view task_id, const spec::Progress& progress) {
  Statement insert = database_.Prepare("INSERT INTO final_progress (task_id, progress) VALUES (?, ?)");
  return insert.Bind(task_id).Bind(ProgressToJson(progress)).Run();
}

absl::Status Transaction::DeleteJob(std::string_view job_id, absl::Time now) {
  Statement tombstone = database_.Prepare("INSERT INTO deleted_jobs (job_id, delete_time) VALUES (?, ?)");
  ATOLL_RETURN_IF_ERROR(tombstone.Bind(job_id).Bind(now).Run());
  Statement checkpoints =
      database_.Prepare("DELETE FROM checkpoints WHERE task_id IN (SELECT task_id FROM tasks WHERE job_id = ?)");
  ATOLL_RETURN_IF_ERROR(checkpoints.Bind(job_id).Run());
  Statement job = database_.Prepare("DELETE FROM jobs WHERE job_id = ?");
  job.Bind(job_id);
  return ChangeOne(job, fmt::format("deleting job {}", job_id));
}

absl::Status Transaction::ForgetDeletedJob(std::string_view job_id) {
  Statement forget = database_.Prepare("DELETE FROM deleted_jobs WHERE job_id = ?");
  return forget.Bind(job_id).Run();
}

absl::Status Transaction::InsertAttempt(const AttemptRow& attempt) {
  Statement insert = database_.Prepare(
      fmt::format("INSERT INTO attempts ({}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", kAttemptColumns));
  insert.Bind(attempt.task_id).Bind(attempt.attempt).Bind(attempt.store_epoch).Bind(attempt.island_id);
  insert.Bind(attempt.incarnation).BindBlob(attempt.secret_sha256).Bind(static_cast<int64_t>(attempt.outcome));
  return insert.Bind(attempt.message).Bind(attempt.start_time).Bind(attempt.end_time).Bind(attempt.code).Run();
}

absl::Status Transaction::ReplaceSecret(std::string_view task_id, int64_t attempt, std::string_view secret_sha256) {
  Statement update =
      database_.Prepare("UPDATE attempts SET secret_sha256 = ? WHERE task_id = ? AND attempt = ? AND outcome = 1");
  update.BindBlob(secret_sha256).Bind(task_id).Bind(attempt);
  return ChangeOne(update, fmt::format("another secret for attempt {} of task {}", attempt, task_id));
}

absl::Status Transaction::EndAttempt(const jobs::EndedAttempt& ended, absl::Time now) {
  Statement update = database_.Prepare(
      "UPDATE attempts SET outcome = ?, message = ?, end_time = ?, code = ? "
      "WHERE task_id = ? AND attempt = ? AND outcome = 1");
  update.Bind(static_cast<int64_t>(ended.outcome)).Bind(ended.message).Bind(now).Bind(ended.code);
  update.Bind(ended.task_id).Bind(ended.attempt);
  return ChangeOne(update, fmt::format("ending attempt {} of task {}", ended.attempt, ended.task_id));
}

absl::Status Transaction::InsertRollback(std::string_view task_id, const jobs::Rollback& rollback) {
  Statement insert = database_.Prepare(
      fmt::format("INSERT INTO rollbacks ({}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", kRollbackColumns));
  insert.Bind(task_id).Bind(rollback.attempt).Bind(rollback.from_step).Bind(rollback.to_step);
  insert.Bind(rollback.skipped.first_step).Bind(rollback.skipped.steps).Bind(rollback.reason);
  return insert.Bind(rollback.message).Bind(rollback.evidence_uri).Bind(rollback.time).Run();
}

absl::Status Transaction::InsertCheckpoint(const CheckpointRow& row) {
  Statement insert = database_.Prepare(
      fmt::format("INSERT INTO checkpoints ({}) VALUES (?, ?, ?, ?, ?, ?, ?, ?)", kCheckpointColumns));
  const spec::CommittedCheckpoint& checkpoint = row.checkpoint;
  insert.Bind(row.task_id).Bind(row.attempt).Bind(checkpoint.step).Bind(checkpoint.manifest_uri);
  insert.Bind(checkpoint.manifest_sha256).Bind(int64_t{checkpoint.milestone});
  return insert.Bind(static_cast<int64_t>(row.state)).Bind(row.commit_time).Run();
}

absl::StatusOr<std::vector<CheckpointRow>> Transaction::Checkpoints(std::string_view task_id) {
  return ReadCheckpoints(database_, task_id);
}

absl::Status Transaction::MarkCheckpoint(std::string_view manifest_uri, CheckpointState state) {
  Statement update = database_.Prepare("UPDATE checkpoints SET state = ? WHERE manifest_uri = ?");
  update.Bind(static_cast<int64_t>(state)).Bind(manifest_uri);
  return ChangeOne(update, fmt::format("changing the state of checkpoint {}", manifest_uri));
}

absl::Status Transaction::DeleteCheckpoint(std::string_view manifest_uri) {
  Statement committed = database_.Prepare("SELECT 1 FROM checkpoints WHERE manifest_uri = ? AND state = 1");
  ATOLL_ASSIGN_OR_RETURN(const bool found, committed.Bind(manifest_uri).Step());
  if (found) {
    return MakeError(absl::StatusCode::kFailedPrecondition, "CHECKPOINT_NOT_DELETING",
                     fmt::format("checkpoint {}: expected DELETING, found COMMITTED", manifest_uri));
  }
  Statement erase = database_.Prepare("DELETE FROM checkpoints WHERE manifest_uri = ? AND state = 2");
  return erase.Bind(manifest_uri).Run();
}

absl::Status Transaction::PutIsland(const leases::Island& island, absl::Time now) {
  Statement put = database_.Prepare(
      "INSERT INTO islands (island_id, incarnation, request_id, capabilities, register_time) VALUES (?, ?, ?, ?, ?) "
      "ON CONFLICT (island_id) DO UPDATE SET incarnation = excluded.incarnation, request_id = excluded.request_id, "
      "capabilities = excluded.capabilities, register_time = excluded.register_time");
  put.Bind(island.island_id).Bind(island.incarnation).Bind(island.request_id);
  return put.Bind(CapabilitiesToJson(island.capabilities)).Bind(now).Run();
}

absl::Status Transaction::DeleteIsland(std::string_view island_id) {
  Statement erase = database_.Prepare("DELETE FROM islands WHERE island_id = ?");
  return erase.Bind(island_id).Run();
}

absl::Status Transaction::SetIslandDrain(std::string_view island_id, std::string_view reason) {
  Statement update = database_.Prepare("UPDATE islands SET drain_reason = ? WHERE island_id = ?");
  update.Bind(reason).Bind(island_id);
  return ChangeOne(update, fmt::format("draining island {}", island_id));
}

absl::Status Transaction::InsertModelVersion(const ModelVersionRow& version) {
  Statement insert = database_.Prepare(
      fmt::format("INSERT INTO model_versions ({}) VALUES (?, ?, ?, ?, ?, ?, ?)", kModelVersionColumns));
  insert.Bind(version.name).Bind(version.version).Bind(version.job_id).Bind(version.uri).Bind(version.digest);
  return insert.Bind(int64_t{version.experts}).Bind(version.publish_time).Run();
}

absl::StatusOr<std::optional<ServingRow>> Transaction::Serving(std::string_view name) {
  Statement row = database_.Prepare(fmt::format("SELECT {} FROM serving WHERE name = ?", kServingColumns));
  ATOLL_ASSIGN_OR_RETURN(const bool found, row.Bind(name).Step());
  if (!found) return std::optional<ServingRow>();
  return std::optional<ServingRow>(ReadServing(row));
}

absl::StatusOr<bool> Transaction::HasModelVersion(std::string_view name, std::string_view version) {
  Statement row = database_.Prepare("SELECT 1 FROM model_versions WHERE name = ? AND version = ?");
  return row.Bind(name).Bind(version).Step();
}

absl::Status Transaction::PutServing(const ServingRow& serving) {
  constexpr std::string_view kReplace =
      " ON CONFLICT (name) DO UPDATE SET version = excluded.version, generation = excluded.generation, "
      "change_time = excluded.change_time, cause = excluded.cause";
  for (const auto& [table, conflict] :
       {std::pair("serving", kReplace), std::pair("serving_history", std::string_view())}) {
    Statement put = database_.Prepare(
        fmt::format("INSERT INTO {} ({}) VALUES (?, ?, ?, ?, ?){}", table, kServingColumns, conflict));
    put.Bind(serving.name).Bind(serving.version).Bind(serving.generation).Bind(serving.change_time);
    ATOLL_RETURN_IF_ERROR(put.Bind(serving.cause).Run());
  }
  return absl::OkStatus();
}

absl::StatusOr<std::optional<Answer>> Transaction::FindAnswer(std::string_view caller, std::string_view method,
                                                              std::string_view request_id) {
  Statement row = database_.Prepare(
      "SELECT payload_hash, response, time FROM answers WHERE caller = ? AND method = ? AND request_id = ?");
  ATOLL_ASSIGN_OR_RETURN(const bool found, row.Bind(caller).Bind(method).Bind(request_id).Step());
  if (!found) return std::optional<Answer>();
  Answer answer{std::string(caller), std::string(method), std::string(request_id), "", "", absl::UnixEpoch()};
  answer.payload_hash = row.Text();
  answer.response = row.Text();
  answer.time = row.Time();
  return std::optional<Answer>(std::move(answer));
}

absl::Status Transaction::InsertAnswer(const Answer& answer) {
  Statement insert = database_.Prepare(
      "INSERT INTO answers (caller, method, request_id, payload_hash, response, time) VALUES (?, ?, ?, ?, ?, ?)");
  insert.Bind(answer.caller).Bind(answer.method).Bind(answer.request_id).Bind(answer.payload_hash);
  return insert.BindBlob(answer.response).Bind(answer.time).Run();
}

absl::Status Transaction::DeleteAnswersBefore(absl::Time time) {
  return database_.Prepare("DELETE FROM answers WHERE time < ?").Bind(time).Run();
}

}  // namespace atl::store
