// The effect of an action on its rank's memory. Shared by the simulator and the timeline. Pure.
#pragma once

#include "common/schedule/simulator.h"

namespace atl::schedule {

struct MemoryChange {
  double kept_bytes = 0;       // from its start on, until another action frees it
  double transient_bytes = 0;  // while it runs
  double freed_bytes = 0;      // at its end
};

MemoryChange MemoryChangeOf(const Action& action, const SimulationCosts& costs);

}  // namespace atl::schedule
