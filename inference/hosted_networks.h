// Looking into what a lane hosts.
#pragma once

#include <algorithm>
#include <vector>

#include "inference/lane.h"

namespace atl::router {

// Null when it is not there. `hosted` is ascending, as ExpertLane::hosted() gives it.
inline const HostedNetwork* FindHosted(const std::vector<HostedNetwork>& hosted, const NetworkId& id) {
  const auto found = std::lower_bound(hosted.begin(), hosted.end(), id,
                                      [](const HostedNetwork& a, const NetworkId& b) { return a.id < b; });
  return found != hosted.end() && found->id == id ? &*found : nullptr;
}

}  // namespace atl::router
