#include "coordinator/jobs/job.h"

#include <algorithm>

namespace atl::jobs {

std::string_view ToString(JobState state) {
  switch (state) {
    case JobState::kPending:
      return "PENDING";
    case JobState::kRunning:
      return "RUNNING";
    case JobState::kSucceeded:
      return "SUCCEEDED";
    case JobState::kFailed:
      return "FAILED";
    case JobState::kCancelled:
      return "CANCELLED";
  }
  return "INVALID";
}

std::string_view ToString(TaskState state) {
  switch (state) {
    case TaskState::kBlocked:
      return "BLOCKED";
    case TaskState::kReady:
      return "READY";
    case TaskState::kLeased:
      return "LEASED";
    case TaskState::kSucceeded:
      return "SUCCEEDED";
    case TaskState::kFailed:
      return "FAILED";
    case TaskState::kCancelled:
      return "CANCELLED";
  }
  return "INVALID";
}

std::string_view ToString(AttemptOutcome outcome) {
  switch (outcome) {
    case AttemptOutcome::kActive:
      return "ACTIVE";
    case AttemptOutcome::kSucceeded:
      return "SUCCEEDED";
    case AttemptOutcome::kFailed:
      return "FAILED";
    case AttemptOutcome::kReleased:
      return "RELEASED";
    case AttemptOutcome::kExpired:
      return "EXPIRED";
    case AttemptOutcome::kReplaced:
      return "REPLACED";
    case AttemptOutcome::kCancelled:
      return "CANCELLED";
    case AttemptOutcome::kRestored:
      return "RESTORED";
    case AttemptOutcome::kRolledBack:
      return "ROLLED_BACK";
  }
  return "INVALID";
}

bool IsFinal(JobState state) {
  return state >= JobState::kSucceeded;
}

bool IsFinal(TaskState state) {
  return state >= TaskState::kSucceeded;
}

std::vector<spec::SkippedWindow> SkippedBy(const Task& task) {
  std::vector<spec::SkippedWindow> skipped;
  for (const Rollback& rollback : task.rollbacks) {
    if (rollback.skipped.steps > 0) skipped.push_back(rollback.skipped);
  }
  return skipped;
}

const Task* FindTask(const JobRecord& record, std::string_view task_id) {
  const auto it = std::find_if(record.tasks.begin(), record.tasks.end(),
                               [task_id](const Task& task) { return task.task_id == task_id; });
  return it == record.tasks.end() ? nullptr : &*it;
}

Task* FindTask(JobRecord& record, std::string_view task_id) {
  return const_cast<Task*>(FindTask(static_cast<const JobRecord&>(record), task_id));
}

}  // namespace atl::jobs
