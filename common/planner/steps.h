// The two kinds of step that a plan has, simulated: those whose model sees its own estimate of the sample, where it is
// self-conditioned, and the others. Pure; for the planner's search.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "common/planner/plan.h"
#include "common/schedule/simulator.h"

namespace atl::planner {

struct Steps {
  schedule::SimulationCosts costs;  // of both
  schedule::Simulation plain;
  schedule::Simulation self_conditioned;  // without ranks where the model is not
};

// Makes plan->self_conditioned anew from plan->schedule, a valid one, and simulates both; at a rate of 0 there is none.
absl::StatusOr<Steps> SimulateSteps(const Profile& profile, double self_conditioning_rate, Plan* plan);

// Until the last action has ended and all frozen outputs are where the next iteration reads them.
double IterationSeconds(const Plan& plan, const Profile& profile, const schedule::Simulation& simulation);

// By rank, of the step that holds more.
std::vector<double> PeakBytesByRank(const Steps& steps);

}  // namespace atl::planner
