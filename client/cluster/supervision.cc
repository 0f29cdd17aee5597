#include "client/cluster/supervision.h"

#include "common/base/backoff.h"

namespace atl::client {

absl::Time RestartPolicy::Died(absl::Time now) {
  constexpr absl::Duration kStable = absl::Seconds(30);
  constexpr BackoffLimits kRestarts{.first = absl::Milliseconds(500), .longest = absl::Seconds(10)};
  deaths_ = now - started_ >= kStable ? 1 : deaths_ + 1;
  return now + BackoffDelay(kRestarts, deaths_, 0);
}

}  // namespace atl::client
