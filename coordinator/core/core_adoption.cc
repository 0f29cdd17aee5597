// After a restore: which tasks may take checkpoints back, and the rows that they get.
#include <algorithm>

#include "common/base/status_macros.h"
#include "coordinator/core/core.h"
#include "coordinator/jobs/task_graph.h"
#include "fmt/format.h"

namespace atl::coordinator {

absl::StatusOr<std::vector<Core::AdoptableTask>> Core::AdoptableTasks() {
  std::vector<AdoptableTask> tasks;
  for (const auto& [job_id, record] : active_) {
    for (const jobs::Task& task : record.tasks) {
      if (!jobs::IsTraining(task.kind)) continue;
      // A blocked task trained on inputs that the store does not have: they are computed again first.
      if (task.state != jobs::TaskState::kReady && task.state != jobs::TaskState::kLeased) continue;
      const spec::TrainingSpec& training =
          task.kind == spec::TaskKind::kTrainRouter ? record.job.spec.router_training : record.job.spec.training;
      AdoptableTask& adoptable = tasks.emplace_back();
      adoptable.task_id = task.task_id;
      adoptable.milestone_every = training.milestone_every;
      ATOLL_ASSIGN_OR_RETURN(adoptable.rows, store_.Checkpoints(task.task_id));
      for (const jobs::Rollback& rollback : task.rollbacks) {
        if (rollback.skipped.steps == 0) continue;
        ATOLL_ASSIGN_OR_RETURN(const std::optional<store::AttemptRow> row,
                               store_.GetAttempt(task.task_id, rollback.attempt));
        if (row) adoptable.divergences.push_back({row->store_epoch, row->attempt, rollback.to_step});
      }
    }
  }
  return tasks;
}

absl::Status Core::AdoptCheckpoints(std::string_view task_id, const std::vector<store::CheckpointRow>& found,
                                    const std::set<std::string>& lost) {
  jobs::JobRecord record = *Active(jobs::JobIdOf(task_id));
  const jobs::Task* task = jobs::FindTask(record, task_id);
  ATOLL_ASSIGN_OR_RETURN(const std::vector<store::CheckpointRow> rows, store_.Checkpoints(task_id));
  int64_t step = 0;
  int64_t attempt = 0;
  for (const store::CheckpointRow& row : rows) {
    if (row.state != store::CheckpointState::kCommitted || lost.contains(row.checkpoint.manifest_uri)) continue;
    step = std::max(step, row.checkpoint.step);
  }
  for (const store::CheckpointRow& row : found) {
    step = std::max(step, row.checkpoint.step);
    attempt = std::max(attempt, row.attempt);
  }
  const auto write_rows = [&](store::Transaction& transaction) -> absl::Status {
    for (const store::CheckpointRow& row : found) ATOLL_RETURN_IF_ERROR(transaction.InsertCheckpoint(row));
    for (const std::string& manifest : lost) {
      ATOLL_RETURN_IF_ERROR(transaction.MarkCheckpoint(manifest, store::CheckpointState::kDeleting));
    }
    return absl::OkStatus();
  };
  // If the newest step is unchanged, only older rows were lost, from which no task continues.
  if (step == task->committed_step) return Write("adopt_checkpoints", write_rows);
  jobs::Effect effect;
  if (task->state == jobs::TaskState::kLeased) {
    const std::string message = fmt::format("the task goes on from step {}, which was taken back", step);
    ATOLL_ASSIGN_OR_RETURN(
        effect, jobs::EndAttempt(record, task_id, {jobs::AttemptOutcome::kRestored, false, message}, clock_.Now()));
  }
  ATOLL_ASSIGN_OR_RETURN(jobs::Effect adopted, jobs::Adopt(record, task_id, attempt, step));
  effect.changed_tasks.insert(adopted.changed_tasks.begin(), adopted.changed_tasks.end());
  effect.reason = std::move(adopted.reason);
  return Apply("adopt_checkpoints", std::move(record), effect, nullptr, write_rows);
}

absl::Status Core::ReleaseCollection() {
  ATOLL_RETURN_IF_ERROR(store_.ReleaseCollection());
  metrics_.collection_held->Set(0);
  return absl::OkStatus();
}

}  // namespace atl::coordinator
