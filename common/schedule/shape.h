// Checks of counts and placements of stages, shared by the generators. Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "common/schedule/action.h"

namespace atl::schedule {

// INVALID_ARGUMENT (SCHEDULE_COUNTS) if a count is below one, ranks are above 4096, or stages x micro-batches exceed
// the limit of a schedule's text.
absl::Status CheckCounts(int32_t ranks, int32_t stages_per_rank, int32_t micro_batches);

// Return schedules without actions. Stage s on rank s; on rank s modulo ranks; stages r and 2 ranks - 1 - r on rank r.
Schedule OneStagePerRank(int32_t ranks, int32_t micro_batches);
Schedule RoundRobin(int32_t ranks, int32_t stages_per_rank, int32_t micro_batches);
Schedule VPlacement(int32_t ranks, int32_t micro_batches);

// Removes the actions of micro-batches from `micro_batches` on. A valid schedule stays valid, because micro-batches do
// not read each other.
void TrimMicroBatches(Schedule* schedule, int32_t micro_batches);

// Merges I and the W of its micro-batch right after it into one B, wherever no other rank waits for the input gradient:
// at equal costs (forward, I and W one slot each, no transfer) its reader starts at least one slot after W has ended,
// so that a hop shorter than a pass stays hidden. No action starts later than before. `schedule` must be valid.
void MergeBackwards(Schedule* schedule);

}  // namespace atl::schedule
