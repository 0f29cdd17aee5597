// Which expert servers a router keeps lanes to, by the coordinator's list of them. Pure.
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
  bool hosts = false;  // anything now: it is in reach, and of use
};

struct LaneChanges {
  std::vector<std::string> remove;  // server_ids
  std::vector<ListedServer> add;    // in the list's order
};

// What to change; removals come first, for a server may be among both. A listed server gets a lane, unless one of the
// `named` addresses is its own; another process or address of a server takes the place of the lane before. A server
// that is not listed keeps its lane while it hosts anything: a coordinator that started again knows no server at first.
LaneChanges DecideLanes(std::span<const ListedServer> listed, std::span<const ServerLane> lanes,
                        std::span<const std::string> named);

}  // namespace atl::router
