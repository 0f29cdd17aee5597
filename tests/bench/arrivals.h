// Arrival times of the requests of an open-loop load. Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace atl::bench {

// The most requests of one load, because every request's outcome is kept to its end.
inline constexpr double kMaxArrivals = 1e6;

// Returns the times of a Poisson process from 0 to `duration`, ascending, independent of the speed of answers. The same
// arguments give the same times on every machine. INVALID_ARGUMENT, reason OUT_OF_RANGE, if rate x duration exceeds
// kMaxArrivals or one of them is not a positive number.
absl::StatusOr<std::vector<absl::Duration>> PoissonArrivals(double per_second, absl::Duration duration, uint64_t seed);

}  // namespace atl::bench
