#include <algorithm>
#include <vector>

#include "common/planner/plan.h"

namespace atl::planner {
namespace {

// Gradients in the dtype of the parameters; two moments and the EMA in fp32, as the parameters are (spec::Validate).
constexpr double kStatesPerParameter = 5;

// A pipeline's rank stands for the same rank of every replica: the slowest of them sets the pace.
double Slowdown(const Plan& plan, const Profile& profile, int32_t rank) {
  double slowest = 0;
  for (int32_t replica = 0; replica < plan.replicas; ++replica) {
    const auto of_island = static_cast<size_t>(replica * plan.schedule.rank_count() + rank);
    slowest = std::max(slowest, of_island < profile.rank_slowdown.size() ? profile.rank_slowdown[of_island] : 1.0);
  }
  return slowest;
}

}  // namespace

schedule::SimulationCosts CostsOf(const Plan& plan, const Profile& profile) {
  const std::vector<LayerProfile> layers = LayersAt(profile, plan.micro_batch_size);
  schedule::SimulationCosts costs;
  costs.fixed_bytes.assign(plan.schedule.rank_count(), 0);
  for (size_t s = 0; s < plan.stages.size(); ++s) {
    const StagePlacement& placement = plan.stages[s];
    const double slowdown = Slowdown(plan, profile, placement.rank);
    schedule::StageCost stage{.forward_seconds = 0,
                              .input_gradient_seconds = 0,
                              .weight_gradient_seconds = 0,
                              .activation_bytes = 0,
                              .backward_seconds = 0};
    for (int32_t i = placement.first_layer; i < placement.end_layer; ++i) {
      const LayerProfile& layer = layers[i];
      stage.forward_seconds += slowdown * layer.forward_seconds;
      stage.input_gradient_seconds += slowdown * layer.input_gradient_seconds;
      stage.weight_gradient_seconds += slowdown * layer.weight_gradient_seconds;
      stage.backward_seconds += slowdown * layer.backward_seconds;
      stage.activation_bytes += layer.kept_bytes;
      stage.weight_gradient_bytes += layer.weight_gradient_bytes;
      stage.forward_transient_bytes = std::max(stage.forward_transient_bytes, layer.forward_transient_bytes);
      stage.backward_transient_bytes = std::max(stage.backward_transient_bytes, layer.backward_transient_bytes);
      costs.fixed_bytes[placement.rank] += kStatesPerParameter * profile.parameter_bytes[i];
    }
    costs.stages.push_back(stage);
    if (s + 1 == plan.stages.size()) continue;
    const double message = layers[placement.end_layer - 1].output_bytes;
    costs.boundary_transfer_seconds.push_back(TransferSeconds(profile, message));
    costs.transfer_seconds = std::max(costs.transfer_seconds, costs.boundary_transfer_seconds.back());
    const int32_t next_rank = plan.stages[s + 1].rank;
    if (next_rank == placement.rank) continue;
    // One receive buffer per lane: the activation at its reader, its gradient at its maker.
    costs.fixed_bytes[next_rank] += message;
    costs.fixed_bytes[placement.rank] += message;
  }
  return costs;
}

}  // namespace atl::planner
