// Schedule generators, one file each. Pure.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "common/schedule/action.h"

namespace atl::schedule {

// GPipe (Huang et al. 2019): all forwards, then all backwards, stage s on rank s. Both loops in micro-batch order, so
// that gradients accumulate as in plain training.
absl::StatusOr<Schedule> GenerateGPipe(int32_t stages, int32_t micro_batches);

// 1F1B, also PipeDream-Flush (Narayanan et al. 2021): stages - s - 1 warm-up forwards on stage s, then one forward,
// one backward. INVALID_ARGUMENT when micro_batches < 1 or stages < 1.
absl::StatusOr<Schedule> Generate1F1B(int32_t stages, int32_t micro_batches);

// By name; INVALID_ARGUMENT lists the known names.
absl::StatusOr<Schedule> Generate(std::string_view name, int32_t stages, int32_t micro_batches);
std::vector<std::string_view> GeneratorNames();

}  // namespace atl::schedule
