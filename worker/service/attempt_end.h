// What becomes of a task's lease when an attempt is over. Pure.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"

namespace atl::worker {

enum class Disposition : uint8_t {
  kComplete,  // the task is done
  kRelease,   // the attempt ended for a reason outside the task: lost ranks, drain
  kFail,      // an error of the task: counts against its budget
  kNothing,   // the lease is not ours any more
};

struct AttemptEnd {
  Disposition disposition = Disposition::kNothing;
  bool permanent = false;  // kFail: the same input would fail again
  absl::Status reason;
};

// `status` and `step`: how the ranks ended; `total_steps`: what was asked for; `revoked`: the coordinator said stop.
AttemptEnd DecideTrainingEnd(const absl::Status& status, int64_t step, int64_t total_steps, bool revoked);

// `stopping`: this process was asked to end, which cancels the task.
AttemptEnd DecideTaskEnd(const absl::Status& status, bool revoked, bool stopping);

}  // namespace atl::worker
