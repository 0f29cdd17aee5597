#include "tests/bench/arrivals.h"

#include <cmath>

#include "common/base/counter_random.h"
#include "common/base/errors.h"
#include "fmt/format.h"

namespace atl::bench {

absl::StatusOr<std::vector<absl::Duration>> PoissonArrivals(double per_second, absl::Duration duration, uint64_t seed) {
  const double seconds = absl::ToDoubleSeconds(duration);
  if (!(per_second > 0) || !(seconds > 0) || !(per_second * seconds <= kMaxArrivals)) {
    return MakeError(absl::StatusCode::kInvalidArgument, "OUT_OF_RANGE",
                     fmt::format("expected a rate and a duration above 0 with at most {:.0f} requests in all, found {} "
                                 "per second for {} s",
                                 kMaxArrivals, per_second, seconds));
  }
  const CounterRandom random(seed, RandomPurpose::kArrivals, 0, 0);
  std::vector<absl::Duration> arrivals;
  double at = 0;
  for (uint32_t i = 0;; ++i) {
    at += -std::log1p(-static_cast<double>(random.Uniform(i))) / per_second;
    if (at >= seconds) return arrivals;
    arrivals.push_back(absl::Seconds(at));
  }
}

}  // namespace atl::bench
