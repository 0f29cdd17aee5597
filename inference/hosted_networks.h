// Looks up a network among those that a lane hosts.
#pragma once

#include <algorithm>
#include <vector>

#include "inference/lane.h"

namespace atl::router {

// Returns null if `id` is not hosted. `hosted` is ascending, as ExpertLane::hosted() returns it.
inline const HostedNetwork* FindHosted(const std::vector<HostedNetwork>& hosted, const NetworkId& id) {
  const auto found = std::lower_bound(hosted.begin(), hosted.end(), id,
                                      [](const HostedNetwork& a, const NetworkId& b) { return a.id < b; });
  return found != hosted.end() && found->id == id ? &*found : nullptr;
}

}  // namespace atl::router
