// The shortest order there is, by branch and bound: settles small problems, and is the oracle of the search's tests.
// Pure and deterministic. For the files adaptive*.cc.
//
// Micro-batches are alike, so that each stage runs them in order: swapping two that are not in order changes no time.
// Branches as Giffler and Thompson (1960): of the rank whose next action could end first, some action starts before
// that end, or could be moved there. A forward could not where it would be held for too long; so there is also the
// branch in which another action of that rank comes first.
#pragma once

#include <cstdint>

#include "common/schedule/adaptive/problem.h"

namespace atl::schedule::adaptive {

// Beyond these the counters of a state do not fit its key.
inline constexpr int32_t kOptimumRanks = 6;
inline constexpr int32_t kOptimumMicroBatches = 15;

struct Optimum {
  bool proven = false;       // the search ended within its nodes: no order has a makespan below `makespan`
  double makespan = kNever;  // the shortest found, or the upper bound that was given
  Order order;               // empty when none is shorter than the upper bound
};

// Looks at `node_limit` partial orders at most, for a makespan below `upper`.
Optimum FindOptimum(const Problem& problem, double upper, int64_t node_limit);

}  // namespace atl::schedule::adaptive
