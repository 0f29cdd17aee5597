// Applies events to a job: the only code that changes the state of a job or a task. Pure: each function changes the
// record that it is given and returns the changes and the reason, so that the caller can write the rows in one
// transaction.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "coordinator/jobs/job.h"

namespace atl::jobs {

struct Effect {
  std::set<std::string> changed_tasks;
  std::vector<EndedAttempt> ended_attempts;
  // One line for the log and for tests.
  std::string reason;
};

// Whether a task or a job may change from one state to the other.
bool MayBecome(TaskState from, TaskState to);
bool MayBecome(JobState from, JobState to);

// All functions: NOT_FOUND (TASK_UNKNOWN) if the job does not have the task; FAILED_PRECONDITION (TASK_ENDED,
// JOB_ENDED, TASK_NOT_LEASED, TASK_NOT_CLAIMABLE, STEP_NOT_NEWER) if the state does not allow the event. The record is
// then unchanged.

// Starts a new attempt of a READY task. If the task is still LEASED, EndAttempt ends its old attempt first.
absl::StatusOr<Effect> Grant(JobRecord& record, std::string_view task_id, int64_t attempt, std::string_view island_id);

// Records that the active attempt committed a checkpoint at `step`, which must be above the last committed one.
absl::StatusOr<Effect> CommitStep(JobRecord& record, std::string_view task_id, int64_t step);

// Records that the active attempt finished the task. Tasks that waited only for it become READY; after `publish` the
// job has SUCCEEDED and its id is the model's version.
absl::StatusOr<Effect> Succeed(JobRecord& record, std::string_view task_id, std::vector<spec::Artifact> outputs,
                               absl::Time now);

struct AttemptEnd {
  AttemptOutcome outcome = AttemptOutcome::kReleased;
  // The same input would fail again: the task fails, even within the budget.
  bool permanent = false;
  std::string message;
  // The coordinator had asked the island to release the task.
  bool asked_for = false;
  std::string code;  // as in EndedAttempt
};

// Ends the active attempt without finishing the task. The attempt counts against the failure budget if the island
// reported an error of the task, or if it committed no checkpoint; a restored store and a task that the coordinator
// asked back do not count. Within the budget the task is READY again. Beyond it the task and the job have FAILED and
// every other task is CANCELLED.
absl::StatusOr<Effect> EndAttempt(JobRecord& record, std::string_view task_id, const AttemptEnd& end, absl::Time now);

// Moves the task to `to` or, if it is empty, to any island other than its own. A READY task needs a `to`
// (TASK_NOT_LEASED without); TASK_ALREADY_THERE when `to` holds it.
absl::StatusOr<Effect> MoveTask(JobRecord& record, std::string_view task_id, std::string_view to, absl::Time until);

// The limit on rollbacks that skip data: a task that diverges once more has FAILED.
inline constexpr int32_t kMaxRollbacks = 2;

struct RollbackRequest {
  // The task goes back to its newest committed checkpoint of a step below this one, else to its start.
  int64_t before_step = 0;
  // Data that was read after that checkpoint up to this step is skipped. 0: no data is skipped, because the checkpoint
  // of `before_step` is damaged.
  int64_t through_step = 0;
  std::string reason;  // UPPER_SNAKE
  std::string message;
  std::string evidence_uri;
};

// Rolls back a training task whose active attempt diverged or could not resume. The task is READY again, with
// `committed_step` set back and the rollback appended, at no cost to the budget. If it diverged too often, the task and
// the job have FAILED. `committed` are the steps of its committed checkpoints. INVALID_ARGUMENT (INVALID_ROLLBACK) for
// inconsistent steps, and FAILED_PRECONDITION (NOT_A_TRAINING_TASK, CHECKPOINT_UNKNOWN).
absl::StatusOr<Effect> RollBack(JobRecord& record, std::string_view task_id, const RollbackRequest& request,
                                const std::vector<int64_t>& committed, absl::Time now);

// Makes a READY task continue from `step`, that of the newest intact checkpoint in the blob store; 0 is the start.
// `attempt` is the newest attempt known to have written for the task; later attempts get higher numbers.
absl::StatusOr<Effect> Adopt(JobRecord& record, std::string_view task_id, int64_t attempt, int64_t step);

// Ends the job and every task that has not ended.
absl::StatusOr<Effect> Cancel(JobRecord& record, std::string_view reason, absl::Time now);

}  // namespace atl::jobs
