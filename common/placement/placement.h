// Assigns networks to holders of limited memory: the expert servers of a coordinator, or the devices of one machine.
// Pure and deterministic.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "common/base/network_id.h"

namespace atl::placement {

struct Holder {
  int64_t memory_bytes = 0;        // for weights; 0: no limit
  std::vector<NetworkId> holding;  // loaded or loading
  std::vector<NetworkId> loading;  // the part of `holding` that is not ready yet
  std::vector<NetworkId> failing;  // recently failed to load: assigned again only if no other holder takes it
};

// The role of a version among those of its model.
enum class VersionRole {
  kStays,
  kComes,   // will stay, but no router serves it yet: another version answers requests meanwhile
  kLeaves,  // routers use it until its successor is ready
};

struct WantedNetwork {
  NetworkId network;
  int64_t bytes = 0;
  double use = 0;   // recent use, in any unit: networks choose in this order
  double heat = 1;  // its use against the average: it gets `heat` times `replicas`
  int32_t max_replicas = std::numeric_limits<int32_t>::max();
  VersionRole role = VersionRole::kStays;
};

struct Placement {
  std::vector<std::vector<NetworkId>> assigned;  // by holder, ascending
  std::vector<NetworkId> unplaced;               // on no holder, ascending
  std::vector<NetworkId> no_room;                // the part of `unplaced` that did not fit; the others wait for them
  int64_t over_memory_bytes = 0;                 // assigned beyond the holders' memory
  bool operator==(const Placement&) const = default;
};

// Assigns a network of average use to `replicas` holders, if there are so many with room.
//
// Every network gets a first replica, then more up to `replicas`, then more in proportion to above-average use. Within
// each round, existing replicas stay, ready ones first, and new ones go where most room is left. Held replicas beyond
// that stay if there is room. If a hot network finds no room, another network moves to a holder with room and lies on
// both for a time. Last, a holder with less than its share of all replicas gets more of the most used networks.
//
// A coming version is placed beside the leaving one: second replicas of both give way to its first ones. If the memory
// holds the staying versions but not the leaving one as well, holders are assigned more than their memory and load the
// requested networks in turn, until the leaving version is gone. A coming version that does not fit even so is not
// started, and takes nothing from the serving one. No network of a leaving version loses its last replica.
Placement Place(std::span<const Holder> holders, std::span<const WantedNetwork> wanted, int32_t replicas);

}  // namespace atl::placement
