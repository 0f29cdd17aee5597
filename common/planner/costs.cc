#include <cmath>
#include <vector>

#include "common/planner/plan.h"

namespace atl::planner {
namespace {

// A core that was measured at 84 GFLOP/s of fp32 products; only the ratios between layers matter to a plan.
constexpr double kMultiplyAddsPerSecond = 42e9;
// In a DiT block the forward keeps 20.2 times what it passes on (measured), as fp32.
constexpr double kActivationsPerBlock = 20.2;
constexpr double kBytesPerValue = 4;

// Input and weight gradients are one product of the forward's size each.
LayerCost Counted(double multiply_adds, double kept_values, bool has_input_gradient) {
  const double seconds = multiply_adds / kMultiplyAddsPerSecond;
  return {.forward_seconds = seconds,
          .input_gradient_seconds = has_input_gradient ? seconds : 0,
          .weight_gradient_seconds = seconds,
          .activation_bytes = kept_values * kBytesPerValue};
}

}  // namespace

std::vector<LayerCost> CountedCosts(const spec::ModelSpec& model, int32_t tokens, int32_t channels) {
  const double width = model.width;
  const double count = tokens;
  const double values_of_patch = static_cast<double>(model.patch) * model.patch * channels;
  const double boundary = count * width;

  const double products = (4 + 2 * model.mlp_ratio) * count * width * width;  // qkv, projection, two of the MLP
  const double attention = 2 * count * count * width;
  const double modulation = 6 * width * width;

  std::vector<LayerCost> costs;
  costs.push_back(Counted(count * values_of_patch * width + 2 * width * width, 2 * boundary,
                          /*has_input_gradient=*/false));
  for (int32_t i = 0; i < model.depth; ++i) {
    LayerCost block = Counted(products + attention + modulation, kActivationsPerBlock * boundary, true);
    // Attention has no weights, and two products in its backward for each of its forward.
    block.weight_gradient_seconds -= attention / kMultiplyAddsPerSecond;
    block.input_gradient_seconds += attention / kMultiplyAddsPerSecond;
    costs.push_back(block);
  }
  costs.push_back(Counted(count * values_of_patch * width + 2 * width * width, 2 * boundary, true));
  return costs;
}

schedule::SimulationCosts StageCosts(const Plan& plan, const std::vector<LayerCost>& costs) {
  schedule::SimulationCosts result;
  for (const StagePlacement& placement : plan.stages) {
    schedule::StageCost stage{0, 0, 0, 0, 0};
    for (int32_t layer = placement.first_layer; layer < placement.end_layer; ++layer) {
      stage.forward_seconds += costs[layer].forward_seconds * plan.micro_batch_size;
      stage.input_gradient_seconds += costs[layer].input_gradient_seconds * plan.micro_batch_size;
      stage.weight_gradient_seconds += costs[layer].weight_gradient_seconds * plan.micro_batch_size;
      stage.activation_bytes += costs[layer].activation_bytes * plan.micro_batch_size;
    }
    result.stages.push_back(stage);
  }
  return result;
}

}  // namespace atl::planner
