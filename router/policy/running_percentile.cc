#include "router/policy/running_percentile.h"

#include <algorithm>
#include <cmath>

namespace atl::router {

RunningPercentile::RunningPercentile(size_t window) : window_(std::max<size_t>(window, 1)) {}

void RunningPercentile::Add(absl::Duration sample) {
  if (samples_.size() < window_) {
    samples_.push_back(sample);
    return;
  }
  samples_[oldest_] = sample;
  oldest_ = (oldest_ + 1) % window_;
}

absl::Duration RunningPercentile::Value(double share) const {
  if (samples_.empty()) return absl::ZeroDuration();
  const auto rank = static_cast<size_t>(std::ceil(share * static_cast<double>(samples_.size())));
  const size_t place = std::clamp<size_t>(rank, 1, samples_.size()) - 1;
  std::vector<absl::Duration> sorted = samples_;
  std::nth_element(sorted.begin(), sorted.begin() + static_cast<std::ptrdiff_t>(place), sorted.end());
  return sorted[place];
}

}  // namespace atl::router
