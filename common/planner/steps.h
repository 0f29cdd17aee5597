// Simulates the two kinds of step of a plan: self-conditioned steps, if the model is self-conditioned, and plain ones.
// Pure; for the planner's search.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "common/planner/plan.h"
#include "common/schedule/simulator.h"

namespace atl::planner {

struct Steps {
  schedule::SimulationCosts costs;  // of both
  schedule::Simulation plain;
  schedule::Simulation self_conditioned;  // without ranks if the model is not self-conditioned
};

// Rebuilds plan->self_conditioned from plan->schedule, which must be valid, and simulates both; at a rate of 0 there is
// none.
absl::StatusOr<Steps> SimulateSteps(const Profile& profile, double self_conditioning_rate, Plan* plan);

// Returns the time until the last action has ended and all frozen outputs are where the next iteration reads them.
double IterationSeconds(const Plan& plan, const Profile& profile, const schedule::Simulation& simulation);

// Returns the peak by rank, of the step that holds more.
std::vector<double> PeakBytesByRank(const Steps& steps);

}  // namespace atl::planner
