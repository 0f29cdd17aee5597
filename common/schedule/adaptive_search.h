// The search itself: candidates from building blocks, compacted under the real costs, the best of them improved by
// local search. Pure and deterministic. For the files adaptive*.cc.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/schedule/adaptive_problem.h"

namespace atl::schedule::adaptive {

struct Effort {
  int32_t compactions = 1000;  // at most this many candidates are compacted, and as many starts looked at
  int32_t moves = 6000;        // at most this many moves are tried by the local search
  int64_t nodes = 400'000;     // of the branch and bound that settles small problems
};

struct NamedOrder {
  std::string name;
  Order order;
};

struct Found {
  Order order;  // of kinds F0 to W0
  Score score;
  std::string reason;
};

// Every rank's limit must hold one micro-batch; then there is always a result. It is never longer than one of `known`
// that fits.
Found Search(const Problem& problem, Goal goal, const Effort& effort, const std::vector<NamedOrder>& known = {});

}  // namespace atl::schedule::adaptive
