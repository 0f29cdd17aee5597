#include <algorithm>

#include "common/base/status_macros.h"
#include "common/schedule/generators.h"
#include "common/schedule/shape.h"

namespace atl::schedule {

absl::StatusOr<Schedule> GenerateZbH1(int32_t ranks, int32_t micro_batches) {
  ATOLL_RETURN_IF_ERROR(CheckCounts(ranks, 1, micro_batches));
  Schedule schedule = OneStagePerRank(ranks, micro_batches);
  for (int32_t stage = 0; stage < ranks; ++stage) {
    auto& actions = schedule.ranks[stage];
    const int32_t warm_up = std::min(ranks - stage - 1, micro_batches);
    for (int32_t m = 0; m < warm_up; ++m) actions.push_back({ActionKind::kForward, stage, m});
    // Weight gradients follow `stage` micro-batches behind: so every rank holds as many micro-batches, and has as much
    // to do while it waits for the last gradients.
    for (int32_t m = 0; m < micro_batches + stage; ++m) {
      if (m + warm_up < micro_batches) actions.push_back({ActionKind::kForward, stage, m + warm_up});
      if (m < micro_batches) actions.push_back({ActionKind::kInputGradient, stage, m});
      if (m >= stage) actions.push_back({ActionKind::kWeightGradient, stage, m - stage});
    }
  }
  MergeBackwards(&schedule);
  return schedule;
}

}  // namespace atl::schedule
