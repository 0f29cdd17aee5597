// Derives transfers between ranks and memory over time from a simulation. Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "common/schedule/action.h"
#include "common/schedule/simulator.h"

namespace atl::schedule {

// One message between two ranks: the result of `action`, in transfer from its end until its arrival.
struct Transfer {
  Action action;
  int32_t from_rank = 0;
  int32_t to_rank = 0;
  double start_seconds = 0;
  double end_seconds = 0;
};

// Returns the transfers of both passes, of C's and their feedback, and of frozen pieces, in order of start.
// `simulation` is of `schedule` under `costs`.
std::vector<Transfer> Transfers(const Schedule& schedule, const SimulationCosts& costs, const Simulation& simulation);

// A rank holds `bytes` from `seconds` on, until the next point.
struct MemoryPoint {
  double seconds = 0;
  double bytes = 0;
  bool operator==(const MemoryPoint&) const = default;
};

// Returns per rank, in order of time, activations, transients, frozen outputs and fixed_bytes together; the largest is
// Simulation::peak_bytes.
std::vector<std::vector<MemoryPoint>> MemoryOverTime(const SimulationCosts& costs, const Simulation& simulation);

}  // namespace atl::schedule
