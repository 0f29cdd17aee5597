// Plans the faults of a chaos run and their times, from a seed, before anything starts. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/time/time.h"

namespace atl::chaos {

enum class FaultKind : uint8_t {
  kKill,      // SIGKILL; the process is started again a second later
  kStop,      // SIGSTOP, longer than the lease, then SIGCONT
  kCut,       // the node's network, both ways
  kDrop,      // a share of what the node receives
  kDeafen,    // nothing reaches the node; what it sends arrives
  kMute,      // nothing of the node arrives; what is sent to it does
  kSlow,      // everything between islands and coordinator arrives later
  kFillDisk,  // no room on the coordinator's disk
  kJumpClock  // the coordinator's wall clock
};
inline constexpr FaultKind kAllFaults[] = {FaultKind::kKill, FaultKind::kStop,     FaultKind::kCut,
                                           FaultKind::kDrop, FaultKind::kDeafen,   FaultKind::kMute,
                                           FaultKind::kSlow, FaultKind::kFillDisk, FaultKind::kJumpClock};

std::string ToString(FaultKind kind);

struct Fault {
  int cycle = 0;
  FaultKind kind = FaultKind::kKill;
  std::string node;      // "coordinator", "router", "island-2/1" (island, rank)
  absl::Duration at;     // since the start
  absl::Duration lasts;  // zero for a kill
  int amount = 0;        // percent lost, milliseconds later, or seconds that the clock jumps
  bool operator==(const Fault&) const = default;
};

// "t=12.3 drop island-2/1 40 for 5.0 s"
std::string ToString(const Fault& fault);

struct ScheduleOptions {
  uint64_t seed = 1;
  int cycles = 20;
  absl::Duration cycle = absl::Seconds(50);
  // The last part of each cycle, in which no fault is active.
  absl::Duration quiet = absl::Seconds(25);
  absl::Duration lease = absl::Seconds(3);
  int islands = 4;
  int ranks = 2;
};

// Returns one or two faults per cycle, on different nodes, in the order of their times. The same options give the same
// list on every machine. Faults come in rounds of all kinds, with several kills and stops in each.
std::vector<Fault> MakeSchedule(const ScheduleOptions& options);

}  // namespace atl::chaos
