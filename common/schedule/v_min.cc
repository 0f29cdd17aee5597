#include <vector>

#include "common/base/status_macros.h"
#include "common/schedule/building_block.h"
#include "common/schedule/generators.h"
#include "common/schedule/shape.h"

namespace atl::schedule {

absl::StatusOr<Schedule> GenerateVMin(int32_t ranks, int32_t micro_batches) {
  ATOLL_RETURN_IF_ERROR(CheckCounts(ranks, 2, micro_batches));
  // Keeps the four slots apart modulo the period.
  const int32_t shift = ranks % 3 == 0 ? 2 : 0;
  std::vector<BuildingBlock> blocks;
  for (int32_t r = 0; r < ranks; ++r) {
    blocks.push_back({r, 2 * ranks - 1 - r, 2 * ranks + shift + r, 4 * ranks + shift - 1 - r});
  }
  Schedule schedule = RepeatBlocks(blocks, micro_batches);
  MergeBackwards(&schedule);
  return schedule;
}

}  // namespace atl::schedule
