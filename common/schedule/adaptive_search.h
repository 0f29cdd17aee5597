// The search itself: candidates from building blocks, compacted under the real costs, the best of them improved by
// local search. Pure and deterministic. For the files adaptive*.cc.
#pragma once

#include <string>
#include <vector>

#include "common/schedule/adaptive_problem.h"

namespace atl::schedule::adaptive {

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
Found Search(const Problem& problem, const AdaptiveOptions& options, const std::vector<NamedOrder>& known);

}  // namespace atl::schedule::adaptive
