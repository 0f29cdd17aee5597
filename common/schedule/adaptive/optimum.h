// Finds the shortest order by branch and bound: solves small problems, and is the oracle of the search's tests. Pure
// and deterministic. For the files of this folder.
//
// Micro-batches are alike, so each stage runs them in order: swapping two that are out of order changes no time.
// Branches as Giffler and Thompson (1960): on the rank whose next action could end first, some action starts before
// that end, or could be moved there. A forward that would be held for too long could not be moved, so one more branch
// starts with another action of that rank.
#pragma once

#include <cstdint>

#include "common/schedule/adaptive/problem.h"

namespace atl::schedule::adaptive {

// Limits beyond which the counters of a state do not fit its key.
inline constexpr int32_t kOptimumRanks = 6;
inline constexpr int32_t kOptimumMicroBatches = 15;

struct Optimum {
  bool proven = false;       // the search finished within its nodes: no order has a makespan below `makespan`
  double makespan = kNever;  // the shortest found, or the given upper bound
  Order order;               // empty if none is shorter than the upper bound
};

// Examines at most `node_limit` partial orders, for a makespan below `upper`.
Optimum FindOptimum(const Problem& problem, double upper, int64_t node_limit);

}  // namespace atl::schedule::adaptive
