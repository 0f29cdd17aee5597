// Which expert server hosts which networks. Pure: the same question gets the same answer.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

namespace atl::serving {

// An expert (0 and up) or the router network (-1) of one published version.
struct Network {
  std::string model;
  std::string version;
  std::string digest;  // of the version's model_index.json
  int32_t expert = 0;
  auto operator<=>(const Network&) const = default;
};

struct PlacementServer {
  std::string server_id;
  int64_t memory_bytes = 0;      // for weights; 0: no limit
  std::vector<Network> hosting;  // what it has or loads
};

struct WantedNetwork {
  Network network;
  int64_t bytes = 0;
  int64_t chosen = 0;  // how often it was asked lately
};

struct PlacementOptions {
  // Servers that a network lies on, where there are so many and they have the room: one may be lost.
  int32_t replicas = 2;
};

struct Placement {
  std::map<std::string, std::vector<Network>> assigned;  // by server_id, ascending
  std::vector<Network> unplaced;                         // on no server, ascending
  int64_t lacking_bytes = 0;                             // of all of those
  bool operator==(const Placement&) const = default;
};

// First every network once, then once more up to `replicas`, then those that are asked more than others in proportion;
// within each round what lies somewhere stays there, and the rest goes where most room is left. What is hosted already
// beyond that stays where there is room.
Placement Place(std::span<const PlacementServer> servers, std::span<const WantedNetwork> wanted,
                const PlacementOptions& options);

}  // namespace atl::serving
