// Pictures of what ranks do when: an SVG timeline, and a Chrome trace file (chrome://tracing, ui.perfetto.dev). The
// same for what the simulator predicts and for what was measured. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/schedule/action.h"
#include "common/schedule/simulator.h"
#include "common/schedule/timeline.h"

namespace atl::schedule {

// Seconds count from the start of the iteration, on one clock for all ranks.
struct DrawnSpan {
  double start_seconds = 0;
  double end_seconds = 0;
};

struct DrawnRank {
  std::vector<SimulatedAction> actions;  // in order of time; simulated or measured
  std::vector<DrawnSpan> updates;        // gradient norm, clipping, optimizer, EMA
  std::vector<MemoryPoint> memory;       // in order of time; empty: not known
};

struct Drawing {
  std::string title;
  std::string subtitle;
  std::vector<DrawnRank> ranks;
  std::vector<Transfer> transfers;

  double end_seconds() const;
};

// What `simulation` says of `schedule` under `costs`: both as they went into Simulate. Memory is what it counts: fixed
// bytes, activations, and transient bytes while an action runs.
Drawing DrawSimulation(const Schedule& schedule, const SimulationCosts& costs, const Simulation& simulation);

// Ranks as rows, a legend with each kind's share of all ranks' time, a time axis, memory below where it is known.
// Stands alone: no font, script or style from elsewhere.
std::string ToSvg(const Drawing& drawing);

// One thread per rank; transfers as flows, memory as counters. Times in microseconds, as the format has it.
std::string ToChromeTrace(const Drawing& drawing);

}  // namespace atl::schedule
