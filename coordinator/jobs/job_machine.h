// What an event does to a job: the only code that changes the state of a job or a task. Pure: each function changes the
// record that it is given and says what changed and why, so that the caller can write the rows in one transaction.
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

// Whether a task or a job may go from one state to the other.
bool MayBecome(TaskState from, TaskState to);
bool MayBecome(JobState from, JobState to);

// All of them: NOT_FOUND (TASK_UNKNOWN) for a task that the job does not have, FAILED_PRECONDITION (TASK_ENDED,
// JOB_ENDED, TASK_NOT_LEASED, TASK_NOT_CLAIMABLE, STEP_NOT_NEWER) for an event that the state does not allow; the
// record is then unchanged.

// A new attempt of a READY task. One that is still LEASED has its old attempt ended first, by EndAttempt.
absl::StatusOr<Effect> Grant(JobRecord& record, std::string_view task_id, int64_t attempt, std::string_view island_id);

// The active attempt committed a checkpoint at `step`, which must be above the last committed one.
absl::StatusOr<Effect> CommitStep(JobRecord& record, std::string_view task_id, int64_t step);

// The active attempt finished the task. Tasks that waited for it alone become READY; after `publish` the job has
// SUCCEEDED and its id is the model's version.
absl::StatusOr<Effect> Succeed(JobRecord& record, std::string_view task_id, std::vector<spec::Artifact> outputs,
                               absl::Time now);

struct AttemptEnd {
  AttemptOutcome outcome = AttemptOutcome::kReleased;
  // The same input would fail again: the budget is not asked.
  bool permanent = false;
  std::string message;
  // The coordinator had asked the island for it.
  bool asked_for = false;
  std::string code;  // as in EndedAttempt
};

// The active attempt ended without finishing the task. It counts against the failure budget when the island reported an
// error of the task, or when the attempt committed no checkpoint; a restored store, and a task that was asked back, are
// nobody's failure. Within the budget the task is READY again; beyond it task and job have FAILED and every other task
// is CANCELLED.
absl::StatusOr<Effect> EndAttempt(JobRecord& record, std::string_view task_id, const AttemptEnd& end, absl::Time now);

// Another island than its own, or `to`, is to go on with the task. A READY task needs a `to` (TASK_NOT_LEASED without);
// TASK_ALREADY_THERE when `to` holds it.
absl::StatusOr<Effect> MoveTask(JobRecord& record, std::string_view task_id, std::string_view to, absl::Time until);

// Of rollbacks that skip data: a task that diverges once more has FAILED.
inline constexpr int32_t kMaxRollbacks = 2;

struct RollbackRequest {
  // The task goes back to its newest committed checkpoint of a step below this one, else to its start.
  int64_t before_step = 0;
  // What was read after that checkpoint up to this step is skipped. 0: nothing; it is the checkpoint of `before_step`
  // that is damaged.
  int64_t through_step = 0;
  std::string reason;  // UPPER_SNAKE
  std::string message;
  std::string evidence_uri;
};

// The active attempt of a training task diverged, or could not resume. The task is READY again, with `committed_step`
// set back and the rollback appended, and no budget is asked; or it diverged once too often, and task and job have
// FAILED. `committed` are the steps of its committed checkpoints. INVALID_ARGUMENT (INVALID_ROLLBACK) for steps that
// make no sense, and FAILED_PRECONDITION (NOT_A_TRAINING_TASK, CHECKPOINT_UNKNOWN).
absl::StatusOr<Effect> RollBack(JobRecord& record, std::string_view task_id, const RollbackRequest& request,
                                const std::vector<int64_t>& committed, absl::Time now);

// A READY task goes on from `step`, that of the newest whole checkpoint in the blob store; 0 is the start. `attempt` is
// the newest attempt that is known to have written for the task; later ones count on from it.
absl::StatusOr<Effect> Adopt(JobRecord& record, std::string_view task_id, int64_t attempt, int64_t step);

// Ends the job and every task that has not ended.
absl::StatusOr<Effect> Cancel(JobRecord& record, std::string_view reason, absl::Time now);

}  // namespace atl::jobs
