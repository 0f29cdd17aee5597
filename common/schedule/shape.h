// What the generators check alike. Pure.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "common/schedule/action.h"

namespace atl::schedule {

// INVALID_ARGUMENT when a count is below one or their product above what a schedule's text may hold.
absl::Status CheckCounts(int32_t stages, int32_t micro_batches);

// A schedule without actions, stage s on rank s.
Schedule OneStagePerRank(int32_t stages, int32_t micro_batches);

}  // namespace atl::schedule
