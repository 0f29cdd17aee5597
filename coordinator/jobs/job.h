// Jobs, tasks and attempts in the coordinator's memory. Plain values: no threads, no clock, no proto.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/time/time.h"
#include "common/spec/spec.h"
#include "common/spec/task.h"

namespace atl::jobs {

// PENDING -> RUNNING | CANCELLED; RUNNING -> SUCCEEDED | FAILED | CANCELLED. The last three are final.
// The numbers are stored and equal those of proto/atoll/job/v1/job.proto.
enum class JobState : uint8_t { kPending = 1, kRunning, kSucceeded, kFailed, kCancelled };

// BLOCKED -> READY | CANCELLED; READY -> LEASED | CANCELLED; LEASED -> READY | SUCCEEDED | FAILED | CANCELLED.
// The last three are final. A lease that ran out is still LEASED: its attempt is ended when another one is granted.
enum class TaskState : uint8_t { kBlocked = 1, kReady, kLeased, kSucceeded, kFailed, kCancelled };

// The state of an attempt. ACTIVE until one of the other outcomes ends it for good. The numbers are stored.
enum class AttemptOutcome : uint8_t {
  kActive = 1,
  kSucceeded,
  kFailed,      // the island reported an error of the task
  kReleased,    // the island gave the task back: drain, lost ranks
  kExpired,     // the lease ran out and another attempt was granted
  kReplaced,    // the island came back with a higher incarnation
  kCancelled,   // the job was cancelled or failed elsewhere
  kRestored,    // the store was restored: its tokens are void
  kRolledBack,  // training diverged, or the checkpoint to resume from is damaged: the task went back
};

std::string_view ToString(JobState state);
std::string_view ToString(TaskState state);
std::string_view ToString(AttemptOutcome outcome);

bool IsFinal(JobState state);
bool IsFinal(TaskState state);

// An operator's request that a task continues on another island. Before `until`, only `to` is granted the task or, if
// `to` is empty, every island except `from`.
struct TaskMove {
  std::string from;  // the island that held it; empty: none did
  std::string to;
  absl::Time until = absl::InfinitePast();  // InfinitePast: not moved
  bool operator==(const TaskMove&) const = default;
};

struct EndedAttempt {
  std::string task_id;
  int64_t attempt = 0;
  AttemptOutcome outcome = AttemptOutcome::kReleased;
  std::string message;
  std::string code;  // canonical, by name; a rollback's reason; empty where the island reported no error
  bool operator==(const EndedAttempt&) const = default;
};

// A task went back to an earlier checkpoint.
struct Rollback {
  int64_t attempt = 0;          // that it ended
  int64_t from_step = 0;        // that diverged, or of the damaged checkpoint
  int64_t to_step = 0;          // from which the task continues; 0: its start
  spec::SkippedWindow skipped;  // of no steps for a damaged checkpoint
  std::string reason;           // UPPER_SNAKE
  std::string message;
  std::string evidence_uri;  // of a divergence
  absl::Time time = absl::UnixEpoch();
  bool operator==(const Rollback&) const = default;
};

struct Task {
  std::string task_id;
  spec::TaskKind kind = spec::TaskKind::kFeaturize;
  int32_t index = 0;
  TaskState state = TaskState::kBlocked;
  // The newest attempt, 0 before the first; only grows.
  int64_t attempt = 0;
  // Island of the newest attempt.
  std::string island_id;
  // The last committed checkpoint's step; 0 before the first.
  int64_t committed_step = 0;
  // Whether the newest attempt committed a checkpoint: its end then costs nothing of the failure budget.
  bool attempt_committed = false;
  // Attempts that counted against the failure budget.
  int32_t failures = 0;
  // Why the task failed or lost its last attempt.
  std::string message;
  // Until the task is granted again.
  TaskMove move;
  std::vector<std::string> depends_on;
  std::vector<spec::Artifact> outputs;
  std::vector<Rollback> rollbacks;  // oldest first
  bool operator==(const Task&) const = default;
};

struct Job {
  std::string job_id;
  spec::JobSpec spec;
  std::string dataset_manifest_uri;
  JobState state = JobState::kPending;
  absl::Time create_time = absl::UnixEpoch();
  absl::Time end_time = absl::InfinitePast();  // InfinitePast until the job ends
  std::string message;
  std::string model_version;
  // The revision of the whole store: grows with every durable change of any job.
  int64_t revision = 0;
  // The caller that submitted the job; empty for jobs of older builds, which did not store it.
  std::string owner;
  bool operator==(const Job&) const = default;
};

// A job with all of its tasks, in graph order.
struct JobRecord {
  Job job;
  std::vector<Task> tasks;
  bool operator==(const JobRecord&) const = default;
};

// Returns the windows of data that the task skips because of its rollbacks.
std::vector<spec::SkippedWindow> SkippedBy(const Task& task);

// Null when the job has no such task.
Task* FindTask(JobRecord& record, std::string_view task_id);
const Task* FindTask(const JobRecord& record, std::string_view task_id);

}  // namespace atl::jobs
