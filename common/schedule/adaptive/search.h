// The search itself: candidates from building blocks, compacted under the real costs, the best of them improved by
// local search. Pure and deterministic. For the files adaptive*.cc.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "common/schedule/adaptive/problem.h"

namespace atl::schedule::adaptive {

struct Found {
  Order order;  // of kinds F0 to W0
  Score score;
  size_t starts = 0;       // orders that candidates were made from
  int32_t candidates = 0;  // that were compacted and timed
};

// Every rank's limit must hold one micro-batch; then there is always a result. It is never longer than one of `known`
// that fits.
Found Search(const Problem& problem, const AdaptiveOptions& options, const std::vector<Order>& known);

}  // namespace atl::schedule::adaptive
