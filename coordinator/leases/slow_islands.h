// Which islands are slower than others at the same work, by the step times that they report. Only shown: a slow island
// is granted as much as any. Pure; `now` is monotonic.
#pragma once

#include <string>
#include <vector>

#include "absl/time/time.h"

namespace atl::leases {

struct StepReport {
  std::string island_id;
  // Islands of one group only are compared: those at tasks of one kind in one job.
  std::string group;
  absl::Duration step_time;
  // As judged before; InfiniteDuration: it was not slower.
  absl::Duration slower_since = absl::InfiniteDuration();
};

struct StepJudgement {
  // Its step time over the median of the others in its group; 0 without others.
  double slowdown = 0;
  absl::Duration slower_since = absl::InfiniteDuration();
  bool slow = false;  // for a minute, at least twice as slow
};

// One for each report, in their order.
std::vector<StepJudgement> JudgeStepTimes(const std::vector<StepReport>& reports, absl::Duration now);

}  // namespace atl::leases
