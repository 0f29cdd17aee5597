#include "coordinator/jobs/job.h"

#include <algorithm>

namespace atl::jobs {
namespace {

// By the number of the enumerator.
constexpr std::string_view kJobStates[] = {"INVALID", "PENDING", "RUNNING", "SUCCEEDED", "FAILED", "CANCELLED"};
constexpr std::string_view kTaskStates[] = {"INVALID",   "BLOCKED", "READY",    "LEASED",
                                            "SUCCEEDED", "FAILED",  "CANCELLED"};
constexpr std::string_view kOutcomes[] = {"INVALID", "ACTIVE",   "SUCCEEDED", "FAILED",   "RELEASED",
                                          "EXPIRED", "REPLACED", "CANCELLED", "RESTORED", "ROLLED_BACK"};

template <size_t size, typename Enum>
std::string_view NameOf(const std::string_view (&names)[size], Enum value) {
  const auto number = static_cast<size_t>(value);
  return names[number < size ? number : 0];
}

}  // namespace

std::string_view ToString(JobState state) {
  return NameOf(kJobStates, state);
}

std::string_view ToString(TaskState state) {
  return NameOf(kTaskStates, state);
}

std::string_view ToString(AttemptOutcome outcome) {
  return NameOf(kOutcomes, outcome);
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
