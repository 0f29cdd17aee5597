// Which holders of limited memory hold which networks: the expert servers of a coordinator, or the devices of one
// machine. Pure: the same question gets the same answer.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "common/base/network_id.h"

namespace atl::placement {

struct Holder {
  int64_t memory_bytes = 0;        // for weights; 0: no limit
  std::vector<NetworkId> holding;  // what it has or loads
  std::vector<NetworkId> loading;  // of those: what is not ready yet
  std::vector<NetworkId> failing;  // what it could not load lately: it gets that only where no other holder takes it
};

// The role of a version among those of its model.
enum class VersionRole {
  kStays,
  kComes,   // it stays, and no router serves it yet: another version answers requests meanwhile
  kLeaves,  // routers use it until the one that comes is ready
};

struct WantedNetwork {
  NetworkId network;
  int64_t bytes = 0;
  double use = 0;   // how much it was used lately, in any unit: networks choose in this order
  double heat = 1;  // its use against the average: it gets `heat` times `replicas`
  int32_t max_replicas = std::numeric_limits<int32_t>::max();
  VersionRole role = VersionRole::kStays;
};

struct Placement {
  std::vector<std::vector<NetworkId>> assigned;  // by holder, ascending
  std::vector<NetworkId> unplaced;               // on no holder, ascending
  std::vector<NetworkId> no_room;                // of those: what did not fit; the others wait for them
  int64_t over_memory_bytes = 0;                 // assigned beyond the holders' memory
  bool operator==(const Placement&) const = default;
};

// A network of average use lies on `replicas` holders, where there are so many and they have the room.
//
// First every network once, then once more up to `replicas`, then those that are used more than others in proportion;
// within each round what lies somewhere stays there, ready ones first, and the rest goes where most room is left. What
// is held already beyond that stays where there is room. Where a hot network finds no room, another one is moved to a
// holder that has some: it lies on both for a time. Last, a holder with less than its share of all replicas gets
// more of what is used most.
//
// A version that comes is placed beside the one that leaves: second replicas of both give way to its first ones. Where
// the memory holds the versions that stay but not the leaving one beside them, holders are assigned more than their
// memory holds, and read in turn what is asked for, until the leaving version is gone. A version that comes and does
// not even fit so is not begun: it takes nothing from the one that serves. No network of a leaving version loses its
// last replica.
Placement Place(std::span<const Holder> holders, std::span<const WantedNetwork> wanted, int32_t replicas);

}  // namespace atl::placement
