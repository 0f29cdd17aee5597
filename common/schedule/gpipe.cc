#include "common/base/status_macros.h"
#include "common/schedule/generators.h"
#include "common/schedule/shape.h"

namespace atl::schedule {

absl::StatusOr<Schedule> GenerateGPipe(int32_t ranks, int32_t micro_batches) {
  ATOLL_RETURN_IF_ERROR(CheckCounts(ranks, 1, micro_batches));
  Schedule schedule = OneStagePerRank(ranks, micro_batches);
  for (int32_t stage = 0; stage < ranks; ++stage) {
    for (int32_t m = 0; m < micro_batches; ++m) schedule.ranks[stage].push_back({ActionKind::kForward, stage, m});
    for (int32_t m = 0; m < micro_batches; ++m) schedule.ranks[stage].push_back({ActionKind::kBackward, stage, m});
  }
  return schedule;
}

}  // namespace atl::schedule
