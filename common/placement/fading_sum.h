// A sum whose amounts decay with a half-life of one minute. Pure.
#pragma once

#include <algorithm>
#include <cmath>

#include "absl/time/time.h"

namespace atl::placement {

class FadingSum {
 public:
  void Add(absl::Duration now, double amount) {
    sum_ = At(now) + amount;
    at_ = now;
  }
  // `now` is monotonic time.
  double At(absl::Duration now) const {
    return sum_ * std::exp2(-absl::FDivDuration(std::max(absl::ZeroDuration(), now - at_), kHalfLife));
  }

 private:
  static constexpr absl::Duration kHalfLife = absl::Minutes(1);

  double sum_ = 0;
  absl::Duration at_;
};

}  // namespace atl::placement
