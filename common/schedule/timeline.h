// What can be read off a simulation: what goes between ranks, how much they hold. Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "common/schedule/action.h"
#include "common/schedule/simulator.h"

namespace atl::schedule {

// One message between two ranks: what `action` computed, under way from its end until it has arrived.
struct Transfer {
  Action action;
  int32_t from_rank = 0;
  int32_t to_rank = 0;
  double start_seconds = 0;
  double end_seconds = 0;
};

// Of both passes, of C's and their feedback, and of frozen pieces, in order of start. `simulation` is of `schedule`
// under `costs`.
std::vector<Transfer> Transfers(const Schedule& schedule, const SimulationCosts& costs, const Simulation& simulation);

// From `seconds` on, until the next point, a rank holds `bytes`.
struct MemoryPoint {
  double seconds = 0;
  double bytes = 0;
  bool operator==(const MemoryPoint&) const = default;
};

// Per rank, in order of time: activations, transients, frozen outputs and fixed_bytes together; the largest is
// Simulation::peak_bytes.
std::vector<std::vector<MemoryPoint>> MemoryOverTime(const SimulationCosts& costs, const Simulation& simulation);

}  // namespace atl::schedule
