// What the generators share: checked counts and where stages lie. Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "common/schedule/action.h"

namespace atl::schedule {

// INVALID_ARGUMENT (SCHEDULE_COUNTS) when a count is below one, ranks are above 4096, or stages x micro-batches above
// what a schedule's text may hold.
absl::Status CheckCounts(int32_t ranks, int32_t stages_per_rank, int32_t micro_batches);

// Schedules without actions. Stage s on rank s; on rank s modulo ranks; stages r and 2 ranks - 1 - r on rank r.
Schedule OneStagePerRank(int32_t ranks, int32_t micro_batches);
Schedule RoundRobin(int32_t ranks, int32_t stages_per_rank, int32_t micro_batches);
Schedule VPlacement(int32_t ranks, int32_t micro_batches);

// Takes out the actions of micro-batches from `micro_batches` on. A valid schedule stays valid: micro-batches do not
// read each other.
void TrimMicroBatches(Schedule* schedule, int32_t micro_batches);

// Writes I and the W of its micro-batch right after it as one B, wherever no other rank waits for the input gradient:
// at equal costs (forward, I and W one slot each, no transfer) its reader starts at least one slot after W has ended,
// so that a hop that costs less than a pass is hidden still. No action starts later than before. `schedule` must be
// valid.
void MergeBackwards(Schedule* schedule);

}  // namespace atl::schedule
