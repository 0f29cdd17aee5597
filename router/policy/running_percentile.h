// A percentile of the latest durations. Pure.
#pragma once

#include <cstddef>
#include <vector>

#include "absl/time/time.h"

namespace atl::router {

// Over a window of the latest samples, so that it follows a machine that gets slower or faster and a few outliers do
// not move it. Not thread-safe.
class RunningPercentile {
 public:
  explicit RunningPercentile(size_t window = 128);  // at least 1

  void Add(absl::Duration sample);
  // `share` in (0, 1]: the smallest sample that at least that share of the window does not exceed. Zero while empty.
  absl::Duration Value(double share) const;
  bool empty() const { return samples_.empty(); }

 private:
  const size_t window_;
  size_t oldest_ = 0;
  std::vector<absl::Duration> samples_;
};

}  // namespace atl::router
