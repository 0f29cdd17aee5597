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
  std::vector<Network> loading;  // of those: what is not ready yet
  std::vector<Network> failing;  // what it could not load lately: it gets that only where no other server takes it
};

// Of a version among those of its model.
enum class VersionRole {
  kStays,
  kComes,   // it stays, and no router serves it yet: another version answers requests meanwhile
  kLeaves,  // routers use it until the one that comes is ready
};

struct WantedNetwork {
  Network network;
  int64_t bytes = 0;
  int64_t chosen = 0;  // how often it was asked lately
  VersionRole role = VersionRole::kStays;
};

struct PlacementOptions {
  // Servers that a network lies on, where there are so many and they have the room: one may be lost.
  int32_t replicas = 2;
  // A replica of a hot network is given up for others only when it would take this many times as much heat to want it.
  double keep_hot = 1.25;
};

struct Placement {
  std::map<std::string, std::vector<Network>> assigned;  // by server_id, ascending
  std::vector<Network> unplaced;                         // on no server, ascending
  std::vector<Network> no_room;                          // of those: what did not fit; the others wait for them
  int64_t lacking_bytes = 0;                             // of all that did not fit
  int64_t over_memory_bytes = 0;                         // assigned beyond the servers' memory
  bool operator==(const Placement&) const = default;
};

// First every network once, then once more up to `replicas`, then those that are asked more than others in proportion;
// within each round what lies somewhere stays there, ready ones first, and the rest goes where most room is left. What
// is hosted already beyond that stays where there is room.
//
// A version that comes is placed beside the one that leaves: second replicas of both give way to its first ones. Where
// the servers' memory holds the versions that stay but not the leaving one beside them, servers are assigned more than
// their memory holds, and read in turn what is asked for, until the leaving version is gone. A version that comes and
// does not even fit so is not begun: it takes nothing from the one that serves. No network of a leaving version loses
// its last replica.
Placement Place(std::span<const PlacementServer> servers, std::span<const WantedNetwork> wanted,
                const PlacementOptions& options);

}  // namespace atl::serving
