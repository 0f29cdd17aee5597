#include "router/policy/numerics.h"

#include <map>
#include <set>
#include <utility>

namespace atl::router {

int32_t ChooseNumerics(int64_t model, std::span<const LaneState> lanes) {
  struct Group {
    std::set<int32_t> networks;
    int64_t lanes = 0;
  };
  std::map<int32_t, Group> groups;
  for (const LaneState& lane : lanes) {
    bool any = false;
    for (const LaneNetwork& network : lane.networks) {
      if (network.model != model) continue;
      groups[lane.numerics].networks.insert(network.network);
      any = true;
    }
    if (any) ++groups[lane.numerics].lanes;
  }
  int32_t best = 0;
  std::pair<size_t, int64_t> most{0, 0};
  for (const auto& [numerics, group] : groups) {
    const std::pair<size_t, int64_t> has{group.networks.size(), group.lanes};
    if (has <= most) continue;
    best = numerics;
    most = has;
  }
  return best;
}

}  // namespace atl::router
