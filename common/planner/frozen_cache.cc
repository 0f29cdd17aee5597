#include "common/planner/frozen_cache.h"

#include <fmt/format.h>

#include <cmath>

#include "common/spec/frozen.h"

namespace atl::planner {

FrozenInputs FrozenInputsOf(const std::vector<spec::FrozenSpec>& components, const spec::TrainingSpec& training,
                            int64_t samples, int32_t classes) {
  FrozenInputs inputs{.iterations = training.steps};
  for (size_t c = 0; c < components.size(); ++c) {
    const int32_t root = spec::FrozenChain(components, static_cast<int32_t>(c)).front();
    const bool labels = components[static_cast<size_t>(root)].input == "label";
    inputs.rows.push_back(labels ? int64_t{classes} + 1 : samples * (training.flip ? 2 : 1));
  }
  return inputs;
}

FrozenCacheDecision DecideFrozenCache(const FrozenCacheFacts& facts) {
  if (facts.storage_limit_bytes > 0 && facts.bytes > facts.storage_limit_bytes) {
    return {false, fmt::format("frozen outputs are computed in every iteration: kept, they would take {:.3g} bytes, "
                               "more than the {:.3g} that there is room for",
                               facts.bytes, facts.storage_limit_bytes)};
  }
  const double saved = facts.computed_seconds - facts.cached_seconds;
  const double iterations = static_cast<double>(facts.iterations);
  const bool cache = iterations * saved > facts.pass_seconds;
  const std::string change = fmt::format("each of {} iterations {:.3g} ms {}", facts.iterations, 1000 * std::abs(saved),
                                         saved < 0 ? "longer" : "shorter");
  if (cache) {
    return {true, fmt::format("frozen outputs are computed once and kept: a pass over all inputs takes {:.3g} s and "
                              "makes {}",
                              facts.pass_seconds, change)};
  }
  return {false,
          fmt::format("frozen outputs are computed in every iteration: a pass over all inputs would take {:.3g} s "
                      "and make {}",
                      facts.pass_seconds, change)};
}

}  // namespace atl::planner
