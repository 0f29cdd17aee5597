// Decides the outcome of a task's lease when an attempt has ended. Pure.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"

namespace atl::worker {

enum class Disposition : uint8_t {
  kComplete,  // the task is done
  kRelease,   // the attempt ended for a reason outside the task: lost ranks, drain
  kRollBack,  // training diverged, or the checkpoint to resume from is damaged: the task goes back to an earlier one
  kFail,      // an error of the task: counts against its budget
  kNothing,   // the lease was revoked
};

// Describes how far a task goes back.
struct Rollback {
  int64_t before_step = 0;   // to the newest committed checkpoint below this step, or else to its start
  int64_t through_step = 0;  // skips the samples read since, up to this step; 0: skips none
  std::string reason;        // UPPER_SNAKE
  std::string message;
  std::string evidence_uri;
};

struct AttemptEnd {
  Disposition disposition = Disposition::kNothing;
  bool permanent = false;     // kFail: the same input would fail again
  bool store_failed = false;  // kRelease: the blob store was the cause
  absl::Status reason;
  Rollback rollback;  // kRollBack
};

// `status` and `step` say how the ranks ended; `total_steps` is the requested number; `revoked`: the coordinator
// revoked the lease.
AttemptEnd DecideTrainingEnd(const absl::Status& status, int64_t step, int64_t total_steps, bool revoked);

// `stopping`: this process is shutting down, which cancels the task.
AttemptEnd DecideTaskEnd(const absl::Status& status, bool revoked, bool stopping);

// If the island's blob store is not the coordinator's (`same_store` is an error), a failure says nothing about the
// task. The task is then released and all of its checkpoints are kept.
AttemptEnd BlameTheStore(AttemptEnd end, const absl::Status& same_store);

// Returns whether the setup of the island ended the attempt, so that every task fails there: its blob store accepts no
// keys and the task has some, the store needs keys and the task has none, or a rank's blob store is not the leader's.
bool IsTheIslandsFault(const AttemptEnd& end);

// Returns whether the blob store or the coordinator may accept later a request that failed with `status`: it is
// unreachable, too slow or full.
bool MayBeTakenLater(const absl::Status& status);

// Returns whether the blob store ended the attempt because it is full, unreachable, a different store, or because its
// keys have expired.
bool IsTheStoresFault(const AttemptEnd& end);
// Releases the task without charging its budget. If the store has failed for too long (`too_long`), the task fails, so
// that a user sees the error. If the store is a different one, the task is always released.
AttemptEnd DecideStoreEnd(AttemptEnd end, bool too_long);

}  // namespace atl::worker
