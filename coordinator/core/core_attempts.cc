// An island's calls on an attempt: progress, commits, and its end.
#include <algorithm>

#include "absl/strings/str_split.h"
#include "common/base/cut_text.h"
#include "common/base/errors.h"
#include "common/base/status_macros.h"
#include "coordinator/core/core.h"
#include "coordinator/jobs/retention.h"
#include "coordinator/jobs/task_graph.h"
#include "coordinator/leases/attempt_secret.h"
#include "fmt/format.h"
#include "spdlog/spdlog.h"

namespace atl::coordinator {
namespace {

constexpr size_t kMaxMetrics = 32;
constexpr size_t kMaxMetricName = 128;
constexpr size_t kMaxMessage = 4096;
constexpr size_t kMaxCode = 64;

bool StartsWith(std::string_view text, std::string_view prefix) {
  return text.substr(0, prefix.size()) == prefix;
}

// Whether `uri` stays below `prefix`, with nothing that a store could take as "up" or as another name of a file.
bool LiesBelow(std::string_view uri, const std::string& prefix) {
  if (!StartsWith(uri, prefix + "/")) return false;
  const std::vector<std::string> names = absl::StrSplit(std::string(uri.substr(prefix.size() + 1)), '/');
  return std::none_of(names.begin(), names.end(),
                      [](const std::string& name) { return name.empty() || name == "." || name == ".."; });
}

// Marks what is no longer kept of a task's committed checkpoints for deletion; returns their steps.
absl::StatusOr<std::vector<int64_t>> PruneCheckpoints(store::Transaction& transaction, std::string_view task_id,
                                                      int32_t keep) {
  ATOLL_ASSIGN_OR_RETURN(const std::vector<store::CheckpointRow> rows, transaction.Checkpoints(task_id));
  std::vector<jobs::RetainedCheckpoint> committed;
  int64_t newest = 0;
  for (const store::CheckpointRow& row : rows) {
    if (row.state != store::CheckpointState::kCommitted) continue;
    newest = std::max(newest, row.checkpoint.step);
    // No output refers to a checkpoint of an unfinished task: only the last one becomes an output, at the end.
    committed.push_back({row.attempt, row.checkpoint.step, row.checkpoint.manifest_uri, row.checkpoint.milestone});
  }
  std::vector<int64_t> steps;
  for (const jobs::RetainedCheckpoint& old : jobs::SupersededCheckpoints(std::move(committed), keep)) {
    steps.push_back(old.step);
    ATOLL_RETURN_IF_ERROR(transaction.MarkCheckpoint(old.manifest_uri, store::CheckpointState::kDeleting));
  }
  for (const store::CheckpointRow& row : rows) {
    if (row.state != store::CheckpointState::kSuperseded || row.checkpoint.step > newest) continue;
    ATOLL_RETURN_IF_ERROR(transaction.MarkCheckpoint(row.checkpoint.manifest_uri, store::CheckpointState::kDeleting));
  }
  return steps;
}

// Metrics are kept with the task, and sent to all who watch its job.
absl::Status CheckMetrics(const spec::Progress& progress) {
  const bool named =
      std::ranges::all_of(progress.metrics, [](const auto& metric) { return metric.first.size() <= kMaxMetricName; });
  if (named && progress.metrics.size() <= kMaxMetrics) return absl::OkStatus();
  return FieldError("progress.metrics", "INVALID_METRICS",
                    fmt::format("expected at most {} with names of at most {} bytes, found {}", kMaxMetrics,
                                kMaxMetricName, named ? fmt::format("{}", progress.metrics.size()) : "a longer name"));
}

const spec::Artifact* FindArtifact(const std::vector<spec::Artifact>& artifacts, std::string_view name) {
  const auto it = std::find_if(artifacts.begin(), artifacts.end(), [&](const auto& a) { return a.name == name; });
  return it == artifacts.end() ? nullptr : &*it;
}

}  // namespace

absl::StatusOr<std::string> Core::HolderOf(const spec::LeaseToken& token) {
  // The number of an attempt of an earlier epoch may have been granted to another island since, so such a token is
  // stale.
  if (token.store_epoch != store_.epoch()) return "";
  const leases::Lease* lease = leases_.Find(token.task_id);
  if (lease != nullptr && lease->attempt == token.attempt) return lease->island_id;
  ATOLL_ASSIGN_OR_RETURN(const std::optional<store::AttemptRow> row, store_.GetAttempt(token.task_id, token.attempt));
  return row ? row->island_id : "";
}

absl::Status Core::CheckLease(const spec::LeaseToken& token) const {
  absl::Status status = leases_.Check(token, store_.epoch());
  if (!status.ok()) metrics_.stale_attempts->Increment();
  return status;
}

absl::StatusOr<jobs::JobRecord> Core::ActiveRecord(const spec::LeaseToken& token) const {
  ATOLL_RETURN_IF_ERROR(CheckLease(token));
  return *Active(leases_.Find(token.task_id)->job_id);
}

absl::StatusOr<bool> Core::EndedAs(const spec::LeaseToken& token, jobs::AttemptOutcome outcome) {
  if (token.store_epoch != store_.epoch()) return false;
  ATOLL_ASSIGN_OR_RETURN(const std::optional<store::AttemptRow> row, store_.GetAttempt(token.task_id, token.attempt));
  return row && row->outcome == outcome && row->store_epoch == token.store_epoch &&
         leases::IsHashOf(row->secret_sha256, token.attempt_secret);
}

absl::Status Core::ReportProgress(const spec::LeaseToken& token, int64_t sequence, const spec::Progress& progress) {
  ATOLL_RETURN_IF_ERROR(CheckLease(token));
  ATOLL_RETURN_IF_ERROR(CheckMetrics(progress));
  TaskProgress& known = progress_[token.task_id];
  if (known.attempt == token.attempt && sequence <= known.sequence) return absl::OkStatus();
  known = {token.attempt, sequence, progress};
  JobChanged(leases_.Find(token.task_id)->job_id);
  return absl::OkStatus();
}

absl::Status Core::CheckCheckpoint(const spec::LeaseToken& token, const spec::CommittedCheckpoint& checkpoint) const {
  if (checkpoint.step < 1) {
    return FieldError("checkpoint.step", "INVALID_CHECKPOINT",
                      fmt::format("expected at least 1, found {}", checkpoint.step));
  }
  if (checkpoint.manifest_sha256.size() != 64) {
    return FieldError("checkpoint.manifest_sha256", "INVALID_CHECKPOINT",
                      fmt::format("expected 64 hex digits, found '{}'", checkpoint.manifest_sha256));
  }
  // A folder of its own: deleting the checkpoint deletes the folder.
  const std::string prefix = WritePrefix(token.task_id, token.attempt);
  const std::string folder = jobs::FolderOf(checkpoint.manifest_uri);
  if (!LiesBelow(checkpoint.manifest_uri, prefix) || folder.size() <= prefix.size() + 1) {
    return FieldError("checkpoint.manifest_uri", "OUTSIDE_WRITE_PREFIX",
                      fmt::format("expected {}/<step>-<nonce>/<file>, found {}", prefix, checkpoint.manifest_uri));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<int64_t>> Core::CommitCheckpoint(const spec::LeaseToken& token,
                                                            const spec::CommittedCheckpoint& checkpoint) {
  std::vector<int64_t> superseded;
  ATOLL_ASSIGN_OR_RETURN(const std::vector<store::CheckpointRow> rows, store_.Checkpoints(token.task_id));
  const bool known = std::any_of(rows.begin(), rows.end(), [&](const store::CheckpointRow& row) {
    return row.attempt == token.attempt && row.checkpoint.step == checkpoint.step &&
           row.checkpoint.manifest_sha256 == checkpoint.manifest_sha256 &&
           row.checkpoint.manifest_uri == checkpoint.manifest_uri;
  });
  if (known && token.store_epoch == store_.epoch()) {
    if (leases_.Check(token, store_.epoch()).ok()) RenewLease(token.task_id);
    return superseded;
  }
  ATOLL_ASSIGN_OR_RETURN(jobs::JobRecord record, ActiveRecord(token));
  ATOLL_RETURN_IF_ERROR(CheckCheckpoint(token, checkpoint));
  ATOLL_ASSIGN_OR_RETURN(const jobs::Effect effect, jobs::CommitStep(record, token.task_id, checkpoint.step));

  const jobs::Task& task = *jobs::FindTask(record, token.task_id);
  const spec::TrainingSpec& training =
      task.kind == spec::TaskKind::kTrainRouter ? record.job.spec.router_training : record.job.spec.training;
  store::CheckpointRow row{token.task_id, token.attempt, checkpoint, store::CheckpointState::kCommitted, clock_.Now()};
  row.checkpoint.milestone |= training.milestone_every > 0 && checkpoint.step % training.milestone_every == 0;
  const int32_t keep = training.keep_checkpoints;
  const auto commit = [&](store::Transaction& transaction) -> absl::Status {
    ATOLL_RETURN_IF_ERROR(transaction.InsertCheckpoint(row));
    ATOLL_ASSIGN_OR_RETURN(superseded, PruneCheckpoints(transaction, token.task_id, keep));
    return absl::OkStatus();
  };
  ATOLL_RETURN_IF_ERROR(Apply(
      "commit_checkpoint", std::move(record), effect, [&](store::Transaction& t) { return t.CheckFence(token); },
      commit));
  RenewLease(token.task_id);
  metrics_.checkpoints_committed->Increment();
  return superseded;
}

absl::Status Core::CheckCompletion(const jobs::JobRecord& record, const jobs::Task& task, const spec::LeaseToken& token,
                                   const std::vector<spec::Artifact>& outputs) {
  ATOLL_RETURN_IF_ERROR(jobs::CheckOutputs(task, outputs));
  if (jobs::IsTraining(task.kind)) {
    const spec::Artifact& last = *FindArtifact(outputs, "checkpoint");
    ATOLL_ASSIGN_OR_RETURN(const std::vector<store::CheckpointRow> rows, store_.Checkpoints(task.task_id));
    const bool committed = std::any_of(rows.begin(), rows.end(), [&](const store::CheckpointRow& row) {
      return row.state == store::CheckpointState::kCommitted && row.checkpoint.manifest_uri == last.uri &&
             row.checkpoint.manifest_sha256 == last.sha256;
    });
    if (committed) return absl::OkStatus();
    return MakeError(absl::StatusCode::kFailedPrecondition, "CHECKPOINT_NOT_COMMITTED",
                     fmt::format("task {}: expected a committed checkpoint as its result, found {}, which no row names",
                                 task.task_id, last.uri));
  }
  const std::string prefix =
      task.kind == spec::TaskKind::kPublish
          ? fmt::format("{}/models/{}/{}", options_.blob_root, record.job.spec.model_name, record.job.job_id)
          : WritePrefix(token.task_id, token.attempt);
  for (const spec::Artifact& artifact : outputs) {
    if (LiesBelow(artifact.uri, prefix)) continue;
    return FieldError("outputs", "OUTSIDE_WRITE_PREFIX",
                      fmt::format("expected '{}' below {}/, found {}", artifact.name, prefix, artifact.uri));
  }
  return absl::OkStatus();
}

absl::Status Core::Publish(store::Transaction& transaction, const jobs::JobRecord& record,
                           const std::vector<spec::Artifact>& outputs) {
  const spec::Artifact& index = *FindArtifact(outputs, "model_index");
  const jobs::Job& job = record.job;
  std::string folder = jobs::FolderOf(index.uri);
  folder.pop_back();
  ATOLL_RETURN_IF_ERROR(transaction.InsertModelVersion(
      {job.spec.model_name, job.job_id, job.job_id, folder, index.sha256, job.spec.experts, clock_.Now()}));
  ATOLL_ASSIGN_OR_RETURN(const std::optional<store::ServingRow> serving, transaction.Serving(job.spec.model_name));
  const int64_t generation = serving ? serving->generation + 1 : 1;
  return transaction.PutServing({job.spec.model_name, job.job_id, generation, clock_.Now(), "published"});
}

absl::Status Core::CompleteTask(const spec::LeaseToken& token, const std::vector<spec::Artifact>& outputs,
                                const spec::Progress& progress) {
  ATOLL_ASSIGN_OR_RETURN(const bool repeated, EndedAs(token, jobs::AttemptOutcome::kSucceeded));
  if (repeated) return absl::OkStatus();
  ATOLL_ASSIGN_OR_RETURN(jobs::JobRecord record, ActiveRecord(token));
  const jobs::Task task = *jobs::FindTask(record, token.task_id);
  ATOLL_RETURN_IF_ERROR(CheckCompletion(record, task, token, outputs));
  ATOLL_ASSIGN_OR_RETURN(const jobs::Effect effect, jobs::Succeed(record, token.task_id, outputs, clock_.Now()));
  const bool publishes = task.kind == spec::TaskKind::kPublish;
  const std::string model_name = record.job.spec.model_name;
  const bool reported = progress.step > 0 && CheckMetrics(progress).ok();
  const TransactionBody finish = [&](store::Transaction& transaction) -> absl::Status {
    if (reported) ATOLL_RETURN_IF_ERROR(transaction.InsertFinalProgress(token.task_id, progress));
    return publishes ? Publish(transaction, record, outputs) : absl::OkStatus();
  };
  ATOLL_RETURN_IF_ERROR(Apply(
      publishes ? "publish" : "complete_task", record, effect,
      [&](store::Transaction& t) { return t.CheckFence(token); }, finish));
  if (publishes) {
    metrics_.models_published->Increment();
    model_watches_.MarkDirty(model_name);
  }
  return absl::OkStatus();
}

absl::Status Core::EndAttempt(std::string_view name, const spec::LeaseToken& token, const jobs::AttemptEnd& end) {
  ATOLL_ASSIGN_OR_RETURN(const bool repeated, EndedAs(token, end.outcome));
  if (repeated) return absl::OkStatus();
  ATOLL_ASSIGN_OR_RETURN(jobs::JobRecord record, ActiveRecord(token));
  ATOLL_ASSIGN_OR_RETURN(const jobs::Effect effect, jobs::EndAttempt(record, token.task_id, end, clock_.Now()));
  return Apply(
      name, std::move(record), effect, [&](store::Transaction& t) { return t.CheckFence(token); }, nullptr);
}

absl::Status Core::FailTask(const spec::LeaseToken& token, std::string_view code, std::string_view message,
                            bool permanent) {
  // For people, who need the code only when there is nothing else.
  const std::string text(message.empty() ? code : message);
  return EndAttempt("fail_task", token,
                    {.outcome = jobs::AttemptOutcome::kFailed,
                     .permanent = permanent,
                     .message = std::string(CutText(text, kMaxMessage)),
                     .code = std::string(CutText(code, kMaxCode))});
}

absl::StatusOr<std::optional<jobs::Rollback>> Core::RollBackTask(const spec::LeaseToken& token,
                                                                 jobs::RollbackRequest request) {
  ATOLL_ASSIGN_OR_RETURN(const bool given_up, EndedAs(token, jobs::AttemptOutcome::kFailed));
  if (given_up) return std::optional<jobs::Rollback>();
  ATOLL_ASSIGN_OR_RETURN(const bool repeated, EndedAs(token, jobs::AttemptOutcome::kRolledBack));
  if (repeated) return FindRollback(token);
  ATOLL_ASSIGN_OR_RETURN(jobs::JobRecord record, ActiveRecord(token));
  const std::string prefix = WritePrefix(token.task_id, token.attempt);
  if (!request.evidence_uri.empty() && !LiesBelow(request.evidence_uri, prefix)) {
    return FieldError("evidence_uri", "OUTSIDE_WRITE_PREFIX",
                      fmt::format("expected it below {}/, found {}", prefix, request.evidence_uri));
  }
  request.reason.resize(CutText(request.reason, kMaxCode).size());
  request.message.resize(CutText(request.message, kMaxMessage).size());
  ATOLL_ASSIGN_OR_RETURN(const std::vector<store::CheckpointRow> rows, store_.Checkpoints(token.task_id));
  std::vector<int64_t> committed;
  for (const store::CheckpointRow& row : rows) {
    if (row.state == store::CheckpointState::kCommitted) committed.push_back(row.checkpoint.step);
  }
  ATOLL_ASSIGN_OR_RETURN(const jobs::Effect effect,
                         jobs::RollBack(record, token.task_id, request, committed, clock_.Now()));
  std::optional<jobs::Rollback> rollback;
  if (!jobs::IsFinal(record.job.state)) rollback = jobs::FindTask(record, token.task_id)->rollbacks.back();
  const TransactionBody write = [&](store::Transaction& transaction) -> absl::Status {
    if (!rollback) return absl::OkStatus();
    for (const store::CheckpointRow& row : rows) {
      if (row.state != store::CheckpointState::kCommitted || row.checkpoint.step <= rollback->to_step) continue;
      ATOLL_RETURN_IF_ERROR(
          transaction.MarkCheckpoint(row.checkpoint.manifest_uri, store::CheckpointState::kSuperseded));
    }
    return transaction.InsertRollback(token.task_id, *rollback);
  };
  ATOLL_RETURN_IF_ERROR(Apply(
      "rollback", std::move(record), effect, [&](store::Transaction& t) { return t.CheckFence(token); }, write));
  if (rollback) (rollback->skipped.steps > 0 ? metrics_.rollbacks_diverged : metrics_.rollbacks_damaged)->Increment();
  return rollback;
}

absl::StatusOr<std::optional<jobs::Rollback>> Core::FindRollback(const spec::LeaseToken& token) {
  ATOLL_ASSIGN_OR_RETURN(const JobView view, GetJob(jobs::JobIdOf(token.task_id)));
  const jobs::Task* task = jobs::FindTask(view.record, token.task_id);
  for (const jobs::Rollback& rollback : task->rollbacks) {
    if (rollback.attempt == token.attempt) return std::optional<jobs::Rollback>(rollback);
  }
  return MakeError(
      absl::StatusCode::kInternal, "ROLLBACK_LOST",
      fmt::format("attempt {} of task {} was rolled back, but no rollback names it", token.attempt, token.task_id));
}

absl::Status Core::ReleaseTask(const spec::LeaseToken& token, std::string_view reason, bool store_failed) {
  const jobs::JobRecord* record = Active(jobs::JobIdOf(token.task_id));
  const jobs::Task* task = record == nullptr ? nullptr : jobs::FindTask(*record, token.task_id);
  return EndAttempt("release_task", token,
                    {jobs::AttemptOutcome::kReleased, false, fmt::format("released: {}", CutText(reason, kMaxMessage)),
                     store_failed || (task != nullptr && IsAskedFor(*task))});
}

}  // namespace atl::coordinator
