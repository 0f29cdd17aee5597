// What becomes of a task's lease when an attempt is over. Pure.
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
  kNothing,   // the lease is not ours any more
};

// How far a task goes back.
struct Rollback {
  int64_t before_step = 0;   // to the newest committed checkpoint of a step below this one, else to its start
  int64_t through_step = 0;  // what was read since, up to this step, is skipped; 0: nothing is
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

// `status` and `step`: how the ranks ended; `total_steps`: what was asked for; `revoked`: the coordinator said stop.
AttemptEnd DecideTrainingEnd(const absl::Status& status, int64_t step, int64_t total_steps, bool revoked);

// `stopping`: this process was asked to end, which cancels the task.
AttemptEnd DecideTaskEnd(const absl::Status& status, bool revoked, bool stopping);

// What failed while the island's blob store was not the coordinator's (`same_store`) says nothing of the task: it is
// given back, and none of its checkpoints is given up.
AttemptEnd BlameTheStore(AttemptEnd end, const absl::Status& same_store);

// Whether the attempt ended by how the island is set up, which no task survives: its blob store takes no keys, and
// tasks bring some; it needs keys, and they bring none; or a rank has another blob store than the leader.
bool IsTheIslandsFault(const AttemptEnd& end);

// Whether what the blob store or the coordinator refused with `status` may be taken later: it is away, too slow or
// full.
bool MayBeTakenLater(const absl::Status& status);

// Whether the blob store ended the attempt, being full, away or another one.
bool IsTheStoresFault(const AttemptEnd& end);
// The task is given back, and its budget stays as it was; unless the store has failed for so long, `too_long`, that
// somebody must hear of it: then it is a failure of the task. Where the store is another one, only the island ends.
AttemptEnd DecideStoreEnd(AttemptEnd end, bool too_long);

}  // namespace atl::worker
