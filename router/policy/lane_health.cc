#include "router/policy/lane_health.h"

#include <algorithm>
#include <set>
#include <utility>

namespace atl::router {

void LaneRecord::Answered() {
  misses_ = 0;
  probing_ = false;
  probe_at_ = absl::InfiniteDuration();
}

void LaneRecord::Missed(absl::Duration now) {
  ++misses_;
  probing_ = false;
  absl::Duration delay = options_.probe_delay;
  for (int32_t i = options_.quarantine_misses; i < misses_ && delay < options_.max_probe_delay; ++i) delay *= 2;
  probe_at_ = now + std::min(delay, options_.max_probe_delay);
}

void LaneRecord::Probed() {
  probing_ = true;
}

LaneHealth LaneRecord::health() const {
  if (misses_ == 0) return LaneHealth::kHealthy;
  return misses_ < options_.quarantine_misses ? LaneHealth::kSuspect : LaneHealth::kQuarantined;
}

std::vector<LaneState> UsableLanes(std::vector<LaneState> lanes, const std::vector<LaneHealth>& health) {
  std::set<std::pair<int64_t, int32_t>> healthy;
  for (size_t i = 0; i < lanes.size(); ++i) {
    if (health[i] != LaneHealth::kHealthy) continue;
    for (const LaneNetwork& network : lanes[i].networks) healthy.emplace(network.model, network.network);
  }
  for (size_t i = 0; i < lanes.size(); ++i) {
    if (health[i] == LaneHealth::kHealthy) continue;
    std::erase_if(lanes[i].networks, [&](const LaneNetwork& network) {
      return health[i] == LaneHealth::kQuarantined || healthy.contains({network.model, network.network});
    });
  }
  return lanes;
}

}  // namespace atl::router
