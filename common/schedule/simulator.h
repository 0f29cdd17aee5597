// Event simulation of a schedule under measured or assumed costs. Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/schedule/action.h"

namespace atl::schedule {

// Per stage. `backward` is the cost of B; I and W are the parts of it.
struct StageCost {
  double forward_seconds = 1;
  double input_gradient_seconds = 1;
  double weight_gradient_seconds = 1;
  double activation_bytes = 1;       // kept from F to B, or to I …
  double weight_gradient_bytes = 0;  // … of which this much stays until W
};

struct SimulationCosts {
  std::vector<StageCost> stages;
  // One hop between two ranks, after the producing action; 0 within one rank. Overlaps compute.
  double transfer_seconds = 0;
};

struct SimulatedAction {
  Action action;
  double start_seconds = 0;
  double end_seconds = 0;
};

struct Simulation {
  std::vector<std::vector<SimulatedAction>> ranks;
  double makespan_seconds = 0;
  // 1 - sum of compute / (ranks * makespan).
  double bubble = 0;
  // Waiting that transfers alone caused, per rank: with free transfers the rank would have waited this much less.
  std::vector<double> exposed_transfer_seconds;
  std::vector<double> peak_activation_bytes;  // per rank
};

// INVALID_ARGUMENT for a schedule that Validate refuses, or costs of another number of stages.
absl::StatusOr<Simulation> Simulate(const Schedule& schedule, const SimulationCosts& costs);

}  // namespace atl::schedule
