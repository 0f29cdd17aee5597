// Draws the ranks' actions over time: an SVG timeline, and a Chrome trace file (chrome://tracing, ui.perfetto.dev).
// Simulated and measured steps are drawn in the same way. Pure.
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

// Draws `simulation`, the result of Simulate for `schedule` and `costs`. Memory is the simulator's: fixed bytes,
// activations, and transient bytes while an action runs.
Drawing DrawSimulation(const Schedule& schedule, const SimulationCosts& costs, const Simulation& simulation);

// Draws ranks as rows, a legend with each kind's share of all ranks' time, a time axis, and memory below if it is
// known. Self-contained: no external font, script or style.
std::string ToSvg(const Drawing& drawing);

// Writes one thread per rank; transfers as flows, memory as counters. Times in microseconds, as the format requires.
std::string ToChromeTrace(const Drawing& drawing);

}  // namespace atl::schedule
