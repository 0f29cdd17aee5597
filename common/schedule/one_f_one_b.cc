#include <algorithm>

#include "common/base/status_macros.h"
#include "common/schedule/generators.h"
#include "common/schedule/shape.h"

namespace atl::schedule {

absl::StatusOr<Schedule> Generate1F1B(int32_t ranks, int32_t micro_batches) {
  ATOLL_RETURN_IF_ERROR(CheckCounts(ranks, 1, micro_batches));
  Schedule schedule = OneStagePerRank(ranks, micro_batches);
  for (int32_t stage = 0; stage < ranks; ++stage) {
    auto& actions = schedule.ranks[stage];
    const int32_t warm_up = std::min(ranks - stage - 1, micro_batches);
    for (int32_t m = 0; m < warm_up; ++m) actions.push_back({ActionKind::kForward, stage, m});
    for (int32_t m = warm_up; m < micro_batches; ++m) {
      actions.push_back({ActionKind::kForward, stage, m});
      actions.push_back({ActionKind::kBackward, stage, m - warm_up});
    }
    for (int32_t m = micro_batches - warm_up; m < micro_batches; ++m) {
      actions.push_back({ActionKind::kBackward, stage, m});
    }
  }
  return schedule;
}

}  // namespace atl::schedule
