#include "coordinator/jobs/job_machine.h"

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <map>

#include "common/base/errors.h"
#include "common/base/status_macros.h"
#include "common/spec/data_cursor.h"
#include "coordinator/jobs/task_graph.h"
#include "fmt/format.h"

namespace atl::jobs {
namespace {

template <typename State>
struct Transition {
  State from;
  State to;
};

// As in specs. Sums of some of them do not overflow.
constexpr int64_t kMostSteps = std::numeric_limits<int32_t>::max();

constexpr Transition<TaskState> kTaskTransitions[] = {
    {TaskState::kBlocked, TaskState::kReady}, {TaskState::kBlocked, TaskState::kCancelled},
    {TaskState::kReady, TaskState::kLeased},  {TaskState::kReady, TaskState::kCancelled},
    {TaskState::kLeased, TaskState::kReady},  {TaskState::kLeased, TaskState::kSucceeded},
    {TaskState::kLeased, TaskState::kFailed}, {TaskState::kLeased, TaskState::kCancelled},
};

constexpr Transition<JobState> kJobTransitions[] = {
    {JobState::kPending, JobState::kRunning},   {JobState::kPending, JobState::kCancelled},
    {JobState::kRunning, JobState::kSucceeded}, {JobState::kRunning, JobState::kFailed},
    {JobState::kRunning, JobState::kCancelled},
};

void Move(Task& task, TaskState to, Effect& effect) {
  // An illegal move is a bug of this file: every public function checks the state first.
  if (!MayBecome(task.state, to)) std::abort();
  task.state = to;
  effect.changed_tasks.insert(task.task_id);
}

void Move(Job& job, JobState to) {
  if (!MayBecome(job.state, to)) std::abort();
  job.state = to;
}

absl::Status NotAllowed(std::string_view reason, std::string_view message) {
  return MakeError(absl::StatusCode::kFailedPrecondition, reason, message);
}

// Returns the task if neither it nor the job has ended.
absl::StatusOr<Task*> OpenTask(JobRecord& record, std::string_view task_id) {
  Task* task = FindTask(record, task_id);
  if (task == nullptr) {
    return MakeError(absl::StatusCode::kNotFound, "TASK_UNKNOWN",
                     fmt::format("job {} has no task {}", record.job.job_id, task_id));
  }
  if (IsFinal(record.job.state)) {
    return NotAllowed("JOB_ENDED", fmt::format("job {} is {}", record.job.job_id, ToString(record.job.state)));
  }
  if (IsFinal(task->state)) {
    return NotAllowed("TASK_ENDED", fmt::format("task {} is {}", task_id, ToString(task->state)));
  }
  return task;
}

absl::StatusOr<Task*> LeasedTask(JobRecord& record, std::string_view task_id) {
  ATOLL_ASSIGN_OR_RETURN(Task * task, OpenTask(record, task_id));
  if (task->state != TaskState::kLeased) {
    return NotAllowed("TASK_NOT_LEASED", fmt::format("task {} is {}, expected LEASED", task_id, ToString(task->state)));
  }
  return task;
}

// Ends every task that has not ended, and with it the job.
void CloseJob(JobRecord& record, JobState state, std::string_view message, absl::Time now, Effect& effect) {
  for (Task& task : record.tasks) {
    if (IsFinal(task.state)) continue;
    if (task.state == TaskState::kLeased) {
      effect.ended_attempts.push_back({task.task_id, task.attempt, AttemptOutcome::kCancelled, std::string(message)});
    }
    Move(task, TaskState::kCancelled, effect);
  }
  Move(record.job, state);
  record.job.message = message;
  record.job.end_time = now;
}

void UnblockDependents(JobRecord& record, Effect& effect) {
  std::map<std::string_view, TaskState> states;
  for (const Task& task : record.tasks) states[task.task_id] = task.state;
  for (Task& task : record.tasks) {
    if (task.state != TaskState::kBlocked) continue;
    const bool ready = std::all_of(task.depends_on.begin(), task.depends_on.end(), [&](const std::string& id) {
      const auto it = states.find(id);
      return it != states.end() && it->second == TaskState::kSucceeded;
    });
    if (ready) Move(task, TaskState::kReady, effect);
  }
}

absl::Status CheckRollback(const Task& task, const RollbackRequest& request, const std::vector<int64_t>& committed) {
  if (!IsTraining(task.kind)) {
    return MakeError(absl::StatusCode::kFailedPrecondition, "NOT_A_TRAINING_TASK",
                     fmt::format("task {}: expected training, found {}", task.task_id, spec::ToString(task.kind)));
  }
  if (request.through_step < 0 || request.through_step > kMostSteps) {
    return FieldError("through_step", "INVALID_ROLLBACK",
                      fmt::format("expected 0 to {}, found {}", kMostSteps, request.through_step));
  }
  const bool known = request.through_step == 0 || request.through_step >= request.before_step;
  if (request.before_step < 1 || !known) {
    return FieldError(
        "before_step", "INVALID_ROLLBACK",
        fmt::format("expected 1 to through_step, found {} and {}", request.before_step, request.through_step));
  }
  // Each takes a checkpoint away, so that they come to an end.
  if (request.through_step == 0 &&
      std::find(committed.begin(), committed.end(), request.before_step) == committed.end()) {
    return MakeError(absl::StatusCode::kFailedPrecondition, "CHECKPOINT_UNKNOWN",
                     fmt::format("task {}: expected a committed checkpoint of step {}, found none", task.task_id,
                                 request.before_step));
  }
  return absl::OkStatus();
}

// "<uri>, <uri>" of all that it ever diverged on.
std::string EvidenceOf(const Task& task, const std::string& newest) {
  std::string uris;
  for (const Rollback& rollback : task.rollbacks) {
    if (!rollback.evidence_uri.empty()) uris += rollback.evidence_uri + ", ";
  }
  return uris + newest;
}

std::string Describe(const Rollback& rollback) {
  const std::string to =
      rollback.to_step > 0 ? fmt::format("rolled back to step {}", rollback.to_step) : "rolled back to its start";
  if (rollback.skipped.steps == 0) return fmt::format("{}: {}", to, rollback.message);
  const std::string evidence = rollback.evidence_uri.empty() ? "" : ", evidence at " + rollback.evidence_uri;
  return fmt::format("{}, skipped {} steps{}: {}", to, rollback.skipped.steps, evidence, rollback.message);
}

bool CountsAgainstBudget(const Task& task, const AttemptEnd& end) {
  if (end.outcome == AttemptOutcome::kRestored) return false;
  if (end.outcome == AttemptOutcome::kReleased && end.asked_for) return false;
  return end.outcome == AttemptOutcome::kFailed || !task.attempt_committed;
}

}  // namespace

bool MayBecome(TaskState from, TaskState to) {
  return std::any_of(std::begin(kTaskTransitions), std::end(kTaskTransitions),
                     [&](const auto& t) { return t.from == from && t.to == to; });
}

bool MayBecome(JobState from, JobState to) {
  return std::any_of(std::begin(kJobTransitions), std::end(kJobTransitions),
                     [&](const auto& t) { return t.from == from && t.to == to; });
}

absl::StatusOr<Effect> Grant(JobRecord& record, std::string_view task_id, int64_t attempt, std::string_view island_id) {
  ATOLL_ASSIGN_OR_RETURN(Task * task, OpenTask(record, task_id));
  if (task->state != TaskState::kReady || attempt <= task->attempt) {
    return NotAllowed("TASK_NOT_CLAIMABLE",
                      fmt::format("task {} is {} with attempt {}, expected READY and an attempt below {}", task_id,
                                  ToString(task->state), task->attempt, attempt));
  }
  Effect effect;
  Move(*task, TaskState::kLeased, effect);
  task->attempt = attempt;
  task->island_id = island_id;
  task->attempt_committed = false;
  task->move = {};
  if (record.job.state == JobState::kPending) Move(record.job, JobState::kRunning);
  effect.reason = fmt::format("attempt {} of task {} granted to island {}", attempt, task_id, island_id);
  return effect;
}

absl::StatusOr<Effect> CommitStep(JobRecord& record, std::string_view task_id, int64_t step) {
  ATOLL_ASSIGN_OR_RETURN(Task * task, LeasedTask(record, task_id));
  if (step <= task->committed_step) {
    return NotAllowed("STEP_NOT_NEWER", fmt::format("task {}: expected a step above the committed {}, found {}",
                                                    task_id, task->committed_step, step));
  }
  task->committed_step = step;
  task->attempt_committed = true;
  Effect effect;
  effect.changed_tasks.insert(task->task_id);
  effect.reason = fmt::format("attempt {} of task {} committed step {}", task->attempt, task_id, step);
  return effect;
}

absl::StatusOr<Effect> Succeed(JobRecord& record, std::string_view task_id, std::vector<spec::Artifact> outputs,
                               absl::Time now) {
  ATOLL_ASSIGN_OR_RETURN(Task * task, LeasedTask(record, task_id));
  Effect effect;
  Move(*task, TaskState::kSucceeded, effect);
  task->outputs = std::move(outputs);
  task->message.clear();
  effect.ended_attempts.push_back({task->task_id, task->attempt, AttemptOutcome::kSucceeded, ""});
  UnblockDependents(record, effect);
  if (task->kind == spec::TaskKind::kPublish) {
    Move(record.job, JobState::kSucceeded);
    record.job.model_version = record.job.job_id;
    record.job.end_time = now;
  }
  effect.reason = fmt::format("attempt {} finished task {}", task->attempt, task_id);
  return effect;
}

absl::StatusOr<Effect> EndAttempt(JobRecord& record, std::string_view task_id, const AttemptEnd& end, absl::Time now) {
  ATOLL_ASSIGN_OR_RETURN(Task * task, LeasedTask(record, task_id));
  Effect effect;
  effect.ended_attempts.push_back({task->task_id, task->attempt, end.outcome, end.message, end.code});
  const bool counts = CountsAgainstBudget(*task, end);
  if (counts) ++task->failures;
  task->message = end.message;
  const int32_t budget = std::max(1, record.job.spec.failure_budget);
  if (!end.permanent && task->failures < budget) {
    Move(*task, TaskState::kReady, effect);
    effect.reason = fmt::format("attempt {} of task {} ended {}, {}: {} of {} failures", task->attempt, task_id,
                                ToString(end.outcome), counts ? "counted" : "not counted", task->failures, budget);
    return effect;
  }
  Move(*task, TaskState::kFailed, effect);
  const std::string why =
      end.permanent ? std::string("permanently") : fmt::format("{} times of {} allowed", task->failures, budget);
  effect.reason = fmt::format("task {} failed {}: {}", task_id, why, end.message);
  CloseJob(record, JobState::kFailed, effect.reason, now, effect);
  return effect;
}

absl::StatusOr<Effect> MoveTask(JobRecord& record, std::string_view task_id, std::string_view to, absl::Time until) {
  ATOLL_ASSIGN_OR_RETURN(Task * task, OpenTask(record, task_id));
  const bool leased = task->state == TaskState::kLeased;
  if (!leased && task->state != TaskState::kReady) {
    return NotAllowed("TASK_NOT_CLAIMABLE",
                      fmt::format("task {} is {}, expected LEASED or READY", task_id, ToString(task->state)));
  }
  if (!leased && to.empty()) {
    return NotAllowed(
        "TASK_NOT_LEASED",
        fmt::format("task {}: expected an island to move it from, or one to keep it for; found it READY", task_id));
  }
  if (leased && task->island_id == to) {
    return NotAllowed("TASK_ALREADY_THERE", fmt::format("task {} is with island {} already", task_id, to));
  }
  task->move = {leased ? task->island_id : "", std::string(to), until};
  Effect effect;
  effect.changed_tasks.insert(task->task_id);
  effect.reason = fmt::format("task {} moves from {} to {}", task_id, leased ? "island " + task->island_id : "nowhere",
                              to.empty() ? "any other island" : fmt::format("island {}", to));
  return effect;
}

absl::StatusOr<Effect> RollBack(JobRecord& record, std::string_view task_id, const RollbackRequest& request,
                                const std::vector<int64_t>& committed, absl::Time now) {
  ATOLL_ASSIGN_OR_RETURN(Task * task, LeasedTask(record, task_id));
  ATOLL_RETURN_IF_ERROR(CheckRollback(*task, request, committed));
  const bool diverged = request.through_step > 0;
  const std::vector<spec::SkippedWindow> skipped = SkippedBy(*task);
  Effect effect;
  if (diverged && static_cast<int32_t>(skipped.size()) >= kMaxRollbacks) {
    effect.ended_attempts.push_back(
        {task->task_id, task->attempt, AttemptOutcome::kFailed, request.message, request.reason});
    task->message = fmt::format("diverged once more after {} rollbacks: {}; evidence at {}", kMaxRollbacks,
                                request.message, EvidenceOf(*task, request.evidence_uri));
    Move(*task, TaskState::kFailed, effect);
    effect.reason = fmt::format("task {} failed: {}", task_id, task->message);
    CloseJob(record, JobState::kFailed, effect.reason, now, effect);
    return effect;
  }
  int64_t to_step = 0;
  for (const int64_t step : committed) {
    if (step < request.before_step) to_step = std::max(to_step, step);
  }
  Rollback rollback{.attempt = task->attempt,
                    .from_step = diverged ? request.through_step : request.before_step,
                    .to_step = to_step,
                    .reason = request.reason,
                    .message = request.message,
                    .evidence_uri = request.evidence_uri,
                    .time = now};
  if (diverged) {
    const int64_t first = spec::UnskippedStep(to_step + 1, skipped);
    rollback.skipped = {first, spec::UnskippedStep(request.through_step, skipped) - first + 1};
  }
  effect.ended_attempts.push_back(
      {task->task_id, task->attempt, AttemptOutcome::kRolledBack, request.message, request.reason});
  Move(*task, TaskState::kReady, effect);
  task->committed_step = to_step;
  task->message = Describe(rollback);
  task->rollbacks.push_back(std::move(rollback));
  effect.reason = fmt::format("task {} {}", task_id, task->message);
  return effect;
}

absl::StatusOr<Effect> Adopt(JobRecord& record, std::string_view task_id, int64_t attempt, int64_t step) {
  ATOLL_ASSIGN_OR_RETURN(Task * task, OpenTask(record, task_id));
  if (task->state != TaskState::kReady) {
    return NotAllowed("TASK_NOT_CLAIMABLE",
                      fmt::format("task {} is {}, expected READY", task_id, ToString(task->state)));
  }
  Effect effect;
  effect.changed_tasks.insert(task->task_id);
  effect.reason = fmt::format("task {} goes on from step {}, not from step {} that the store knew of", task_id, step,
                              task->committed_step);
  task->attempt = std::max(task->attempt, attempt);
  task->committed_step = step;
  return effect;
}

absl::StatusOr<Effect> Cancel(JobRecord& record, std::string_view reason, absl::Time now) {
  if (IsFinal(record.job.state)) {
    return NotAllowed("JOB_ENDED", fmt::format("job {} cannot be cancelled: it is {}", record.job.job_id,
                                               ToString(record.job.state)));
  }
  Effect effect;
  const std::string message = reason.empty() ? std::string("cancelled") : fmt::format("cancelled: {}", reason);
  CloseJob(record, JobState::kCancelled, message, now, effect);
  effect.reason = fmt::format("job {} {}", record.job.job_id, message);
  return effect;
}

}  // namespace atl::jobs
