#include "router/policy/lane_health.h"

#include <algorithm>
#include <set>
#include <utility>

#include "common/base/backoff.h"

namespace atl::router {
namespace {

constexpr int32_t kQuarantineMisses = 2;  // without an answer between them
// Between a miss and the next probe; doubles with every miss of a quarantined lane.
constexpr BackoffLimits kProbes{.first = absl::Milliseconds(500), .longest = absl::Seconds(30)};

}  // namespace

void LaneRecord::Answered() {
  misses_ = 0;
  probing_ = false;
  probe_at_ = absl::InfiniteDuration();
}

void LaneRecord::Missed(absl::Duration now) {
  ++misses_;
  probing_ = false;
  probe_at_ = now + BackoffDelay(kProbes, std::max(misses_ - kQuarantineMisses + 1, 1), 0);
}

void LaneRecord::Probed() {
  probing_ = true;
}

LaneHealth LaneRecord::health() const {
  if (misses_ == 0) return LaneHealth::kHealthy;
  return misses_ < kQuarantineMisses ? LaneHealth::kSuspect : LaneHealth::kQuarantined;
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
