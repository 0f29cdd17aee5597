// Which expert servers a router keeps lanes to, by the coordinator's list of them. Pure.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "absl/time/time.h"

namespace atl::router {

// A server on the coordinator's list.
struct ListedServer {
  std::string server_id;
  std::string incarnation;  // of its process
  std::string address;      // "host:port"
  bool operator==(const ListedServer&) const = default;
};

// A lane to a server that was found on the list.
struct ServerLane {
  ListedServer server;
  bool hosts = false;  // anything now: it is in reach, and of use
  // Since when the list is without it; InfiniteDuration while it is listed.
  absl::Duration unlisted_since = absl::InfiniteDuration();
};

// A server that is not listed any more, and still answers, keeps its lane for so long: a coordinator that started again
// knows its servers within seconds.
constexpr absl::Duration kUnlistedGrace = absl::Seconds(30);

struct LaneChanges {
  std::vector<std::string> remove;  // server_ids
  std::vector<ListedServer> add;    // in the list's order
  absl::Duration look_again_at = absl::InfiniteDuration();
};

// What to change; removals come first, for a server may be among both. A listed server gets a lane, unless one of the
// `named` addresses is its own; another process or address of a server takes the place of the lane before. A server
// that is not listed loses its lane when it hosts nothing, or when the grace is over.
LaneChanges DecideLanes(absl::Duration now, std::span<const ListedServer> listed, std::span<const ServerLane> lanes,
                        std::span<const std::string> named);

}  // namespace atl::router
