#include "client/supervision.h"

#include <algorithm>

namespace atl::client {

absl::Time RestartPolicy::Died(absl::Time now) {
  constexpr absl::Duration kStable = absl::Seconds(30);
  constexpr absl::Duration kFirst = absl::Milliseconds(500);
  constexpr absl::Duration kMost = absl::Seconds(10);
  pause_ = now - started_ >= kStable ? kFirst : std::clamp(pause_ * 2, kFirst, kMost);
  return now + pause_;
}

}  // namespace atl::client
