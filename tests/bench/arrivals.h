// When the requests of an open-loop load arrive. Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace atl::bench {

// What one load may hold: every request's outcome is kept to its end.
inline constexpr double kMaxArrivals = 1e6;

// Times of a Poisson process from 0 to `duration`, ascending: independent of how fast anyone answers. The same numbers
// give the same times on every machine. INVALID_ARGUMENT, reason OUT_OF_RANGE, when rate x duration is above
// kMaxArrivals, or one of them is not a positive number.
absl::StatusOr<std::vector<absl::Duration>> PoissonArrivals(double per_second, absl::Duration duration, uint64_t seed);

}  // namespace atl::bench
