#include "common/base/backoff.h"

#include <algorithm>
#include <cmath>

namespace atl {

absl::Duration BackoffDelay(const BackoffLimits& limits, int64_t failures, double jitter) {
  const double doublings = std::clamp(static_cast<double>(failures - 1), 0.0, 60.0);
  return std::min(limits.first * std::exp2(doublings), limits.longest) * (1 - jitter / 2);
}

}  // namespace atl
