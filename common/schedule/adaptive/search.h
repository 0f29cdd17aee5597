// The search: makes candidates from building blocks, compacts them under the real costs, and improves the best by local
// search. Pure and deterministic. For the files of this folder.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "common/schedule/adaptive/problem.h"

namespace atl::schedule::adaptive {

struct Found {
  Order order;  // of kinds F0 to W0
  Score score;
  size_t starts = 0;       // orders from which candidates were made
  int32_t candidates = 0;  // compacted and timed
};

// Every rank's limit must hold one micro-batch; then there is always a result. It is never longer than any order of
// `known` that fits.
Found Search(const Problem& problem, const AdaptiveOptions& options, const std::vector<Order>& known);

}  // namespace atl::schedule::adaptive
