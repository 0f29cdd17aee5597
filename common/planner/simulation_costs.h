// Turns a plan and a profile into costs for the simulator and the partition. Pure.
#pragma once

#include <vector>

#include "common/planner/plan.h"

namespace atl::planner {

// Returns slowdowns by rank of a pipeline: the slowest of that rank's replicas sets the pace.
std::vector<double> SlowdownByRank(const Plan& plan, const Profile& profile);

// Returns the bytes of a trainable layer's parameters with all state kept per parameter.
double StateBytes(double parameter_bytes);

// Returns the bytes that one rank holds if it runs pieces of every frozen layer and reads their outputs.
double FrozenBytes(const Plan& plan, const Profile& profile);

// Returns by component of the plan the ranks that must have its output before the next iteration.
std::vector<std::vector<int32_t>> FrozenReaders(const Plan& plan);

// Returns by rank the bytes of a plan's frozen pieces: the weights of the layers that the rank runs, the largest output
// between two of them, and on readers the outputs of this iteration and the next.
std::vector<double> FrozenBytesByRank(const Plan& plan, const Profile& profile);

}  // namespace atl::planner
