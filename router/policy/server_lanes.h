// Decides to which expert servers a router keeps lanes, from the coordinator's list. Pure.
#pragma once

#include <span>
#include <string>
#include <vector>

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
  bool hosts = false;  // any network now: it is reachable and useful
};

struct LaneChanges {
  std::vector<std::string> remove;  // server_ids
  std::vector<ListedServer> add;    // in the list's order
};

// Returns the lanes to add and to remove; removals come first, because a server may be in both. A listed server gets a
// lane, unless its address is among `named`. If a server's process or address changes, a new lane replaces the old one.
// A server that is not listed keeps its lane while it hosts anything, because a restarted coordinator knows no server
// at first.
LaneChanges DecideLanes(std::span<const ListedServer> listed, std::span<const ServerLane> lanes,
                        std::span<const std::string> named);

}  // namespace atl::router
