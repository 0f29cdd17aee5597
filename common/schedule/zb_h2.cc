#include <algorithm>

#include "common/base/status_macros.h"
#include "common/schedule/generators.h"
#include "common/schedule/shape.h"

namespace atl::schedule {

absl::StatusOr<Schedule> GenerateZbH2(int32_t ranks, int32_t micro_batches) {
  ATOLL_RETURN_IF_ERROR(CheckCounts(ranks, 1, micro_batches));
  Schedule schedule = OneStagePerRank(ranks, micro_batches);
  for (int32_t stage = 0; stage < ranks; ++stage) {
    auto& actions = schedule.ranks[stage];
    const int32_t warm_up = std::min(2 * (ranks - stage) - 1, micro_batches);
    for (int32_t m = 0; m < warm_up; ++m) actions.push_back({ActionKind::kForward, stage, m});
    int32_t weight_gradients = 0;
    for (int32_t m = 0; m < micro_batches; ++m) {
      actions.push_back({ActionKind::kInputGradient, stage, m});
      // From here on rank 0 has no forwards left and wants gradients faster: ranks that still have forwards leave
      // their weight gradients for later.
      const bool rank_0_drains = m > micro_batches - 2 * ranks;
      const bool has_forward = m + warm_up < micro_batches;
      if (!rank_0_drains || !has_forward) {
        actions.push_back({ActionKind::kWeightGradient, stage, weight_gradients++});
      }
      if (has_forward) actions.push_back({ActionKind::kForward, stage, m + warm_up});
    }
    while (weight_gradients < micro_batches) {
      actions.push_back({ActionKind::kWeightGradient, stage, weight_gradients++});
    }
  }
  MergeBackwards(&schedule);
  return schedule;
}

}  // namespace atl::schedule
