// From a plan and a profile to what the simulator and the partition count with. Pure.
#pragma once

#include <vector>

#include "common/planner/plan.h"

namespace atl::planner {

// By rank of a pipeline, which stands for the same rank of every replica: the slowest of them sets the pace.
std::vector<double> SlowdownByRank(const Plan& plan, const Profile& profile);

// Parameters of a trainable layer with all that is kept per parameter.
double StateBytes(double parameter_bytes);

// What one rank holds if it runs pieces of every frozen layer and is the reader of their outputs.
double FrozenBytes(const Plan& plan, const Profile& profile);

// By component of the plan: the ranks that must have its output before the next iteration.
std::vector<std::vector<int32_t>> FrozenReaders(const Plan& plan);

// Of the frozen work of a plan with pieces, by rank: weights of the layers that the rank runs, the largest output
// between two of them, and where the outputs are read, those of this iteration and the next.
std::vector<double> FrozenBytesByRank(const Plan& plan, const Profile& profile);

}  // namespace atl::planner
