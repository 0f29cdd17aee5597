#include "router/policy/server_lanes.h"

#include <algorithm>

namespace atl::router {

LaneChanges DecideLanes(std::span<const ListedServer> listed, std::span<const ServerLane> lanes,
                        std::span<const std::string> named) {
  LaneChanges changes;
  const auto is_named = [&](const std::string& address) {
    return std::find(named.begin(), named.end(), address) != named.end();
  };
  for (const ServerLane& lane : lanes) {
    const auto entry = std::find_if(listed.begin(), listed.end(), [&](const ListedServer& server) {
      return server.server_id == lane.server.server_id;
    });
    const bool stays = entry == listed.end() ? lane.hosts : *entry == lane.server;
    if (!stays) changes.remove.push_back(lane.server.server_id);
  }
  for (const ListedServer& server : listed) {
    if (is_named(server.address)) continue;
    const bool kept =
        std::any_of(lanes.begin(), lanes.end(), [&](const ServerLane& lane) { return lane.server == server; });
    if (!kept) changes.add.push_back(server);
  }
  return changes;
}

}  // namespace atl::router
