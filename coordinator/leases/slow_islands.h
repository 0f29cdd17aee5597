// Detects islands that are slower than others at the same work, from their reported step times. For display only: a
// slow island is granted as much as any other. Pure; `now` is monotonic.
#pragma once

#include <string>
#include <vector>

#include "absl/time/time.h"

namespace atl::leases {

struct StepReport {
  std::string island_id;
  // Only islands of one group are compared: those with tasks of one kind in one job.
  std::string group;
  absl::Duration step_time;
  // From the previous judgement; InfiniteDuration: it was not slower.
  absl::Duration slower_since = absl::InfiniteDuration();
};

struct StepJudgement {
  // Its step time over the median of the others in its group; 0 without others.
  double slowdown = 0;
  absl::Duration slower_since = absl::InfiniteDuration();
  bool slow = false;  // for a minute, at least twice as slow
};

// Returns one judgement for each report, in their order.
std::vector<StepJudgement> JudgeStepTimes(const std::vector<StepReport>& reports, absl::Duration now);

}  // namespace atl::leases
