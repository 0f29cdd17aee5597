#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <vector>

#include <fmt/format.h>

#include "common/base/errors.h"
#include "common/planner/plan.h"

namespace atl::planner {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
// Two splits whose sums differ by rounding alone count as equal, so that the earliest of them is chosen.
constexpr double kRoundingSlack = 1 + 1e-9;

double Seconds(const LayerProfile& layer) {
  return layer.forward_seconds + layer.input_gradient_seconds + layer.weight_gradient_seconds;
}

}  // namespace

absl::StatusOr<std::vector<StagePlacement>> PartitionLayers(const std::vector<LayerProfile>& profiles, int32_t stages) {
  const auto layers = static_cast<int32_t>(profiles.size());
  if (stages < 1 || stages > layers) {
    return FieldError("pipeline.stages", "STAGES_OUT_OF_RANGE",
                      fmt::format("expected 1 to {} (the layers of the model), found {}", layers, stages));
  }
  std::vector<double> sum_to(layers + 1, 0);
  for (int32_t i = 0; i < layers; ++i) {
    const double seconds = Seconds(profiles[i]);
    if (!std::isfinite(seconds) || seconds < 0) {
      return MakeError(absl::StatusCode::kInvalidArgument, "LAYER_COST",
                       fmt::format("cost of layer {}: expected a finite number of at least 0, found {}", i, seconds));
    }
    sum_to[i + 1] = sum_to[i] + seconds;
  }
  const auto run = [&](int32_t first, int32_t end) { return sum_to[end] - sum_to[first]; };

  // least[k][i]: the largest stage of the best split of layers i … into k stages.
  std::vector<std::vector<double>> least(stages + 1, std::vector<double>(layers + 1, kInfinity));
  least[0][layers] = 0;
  for (int32_t k = 1; k <= stages; ++k) {
    for (int32_t i = layers - k; i >= 0; --i) {
      for (int32_t end = i + 1; end <= layers - (k - 1); ++end) {
        least[k][i] = std::min(least[k][i], std::max(run(i, end), least[k - 1][end]));
      }
    }
  }

  // Any split below this bound is as good: take the one that ends its first stage earliest, and so on. Early stages
  // hold the most micro-batches, so they get the fewest layers.
  const double bound = least[stages][0] * kRoundingSlack;
  std::vector<StagePlacement> placements;
  int32_t first = 0;
  for (int32_t stage = 0; stage < stages; ++stage) {
    const int32_t left = stages - stage - 1;
    int32_t end = first + 1;
    while (run(first, end) > bound || least[left][end] > bound) ++end;
    placements.push_back({.rank = stage, .first_layer = first, .end_layer = end});
    first = end;
  }
  return placements;
}

}  // namespace atl::planner
