#include "common/planner/simulation_costs.h"

#include <algorithm>
#include <set>
#include <utility>
#include <vector>

#include "common/planner/frozen_flow.h"

namespace atl::planner {
namespace {

// Gradients in the dtype of the parameters; two moments and the EMA in fp32, as the parameters are (spec::Validate).
constexpr double kStatesPerParameter = 5;

double OutputBytes(const Plan& plan, const FrozenComponentProfile& component) {
  return component.layers.back().output_bytes * plan.micro_batches * plan.micro_batch_size;
}

// A ring over the replicas: each rank passes on all parts but its own twice.
double ReduceSeconds(const Plan& plan, const Profile& profile, double bytes) {
  if (plan.replicas < 2) return 0;
  return 2.0 * (plan.replicas - 1) * TransferSeconds(profile, bytes / plan.replicas);
}

// Returns the memory of R on top of a stage's gradients. R copies them to one run of memory before the other ranks'
// parts arrive, and an earlier stage's R may still be running: together no more than all of the rank's gradients once.
double ReduceBytes(const Plan& plan, const Profile& profile, int32_t rank) {
  double bytes = 0;
  for (const StagePlacement& placement : plan.stages) {
    if (plan.replicas < 2 || placement.rank != rank) continue;
    for (int32_t i = placement.first_layer; i < placement.end_layer; ++i) bytes += profile.parameter_bytes[i];
  }
  return bytes;
}

schedule::StageCost CostOfStage(const StagePlacement& placement, const std::vector<LayerProfile>& layers,
                                const std::vector<uint8_t>& recomputed, double slowdown) {
  schedule::StageCost stage{.forward_seconds = 0,
                            .input_gradient_seconds = 0,
                            .weight_gradient_seconds = 0,
                            .activation_bytes = 0,
                            .backward_seconds = 0};
  for (int32_t i = placement.first_layer; i < placement.end_layer; ++i) {
    const LayerProfile& layer = layers[i];
    const bool again = recomputed[i] != 0;
    const double forward_again = again ? layer.forward_seconds : 0;
    // The first layer reads the batch, which is there anyway.
    const double input = i == 0 ? 0 : std::min(layers[i - 1].output_bytes, layer.kept_bytes);
    stage.forward_seconds += slowdown * layer.forward_seconds;
    stage.input_gradient_seconds += slowdown * (layer.input_gradient_seconds + forward_again);
    stage.weight_gradient_seconds += slowdown * layer.weight_gradient_seconds;
    stage.backward_seconds += slowdown * (layer.backward_seconds + forward_again);
    stage.activation_bytes += again ? input : layer.kept_bytes;
    stage.weight_gradient_bytes += layer.weight_gradient_bytes;
    stage.forward_transient_bytes = std::max(stage.forward_transient_bytes, layer.forward_transient_bytes);
    // Without a graph, a layer's activations are freed as it ends: at most its inputs and all that it would keep.
    stage.self_conditioning_transient_bytes =
        std::max(stage.self_conditioning_transient_bytes, input + layer.kept_bytes + layer.forward_transient_bytes);
    stage.backward_transient_bytes = std::max(stage.backward_transient_bytes,
                                              layer.backward_transient_bytes + (again ? layer.kept_bytes - input : 0));
  }
  return stage;
}

std::vector<schedule::FrozenCost> FrozenCosts(const Plan& plan, const Profile& profile,
                                              const std::vector<double>& slowdown) {
  const absl::StatusOr<FrozenFlow> flow = FrozenFlowOf(plan);
  std::vector<schedule::FrozenCost> costs;
  for (size_t i = 0; i < plan.frozen.size(); ++i) {
    const FrozenPiece& piece = plan.frozen[i];
    const std::vector<FrozenLayerProfile>& layers = profile.frozen[piece.component].layers;
    schedule::FrozenCost& cost = costs.emplace_back();
    for (int32_t layer = piece.first_layer; layer < piece.end_layer; ++layer) {
      cost.seconds += slowdown[piece.rank] * FrozenSeconds(layers[layer], piece.samples);
    }
    if (flow.ok()) cost.reads = flow->reads[i];
    if (!cost.reads.empty()) {
      cost.transfer_seconds = TransferSeconds(profile, layers[piece.first_layer].input_bytes * piece.samples);
    }
    // A layer's output inside a piece is freed when the next layer has read it.
    if (piece.end_layer == static_cast<int32_t>(layers.size())) {
      cost.output_bytes = layers.back().output_bytes * piece.samples;
    }
  }
  return costs;
}

// The ranks that read a component's output in the next iteration.
std::vector<int32_t> ReadersOf(const Plan& plan, const FrozenComponent& component) {
  std::vector<int32_t> readers;
  if (component.to_first_stage) readers.push_back(plan.schedule.rank_of_stage.front());
  const int32_t last = plan.schedule.rank_of_stage.back();
  if (component.to_last_stage && (readers.empty() || readers.front() != last)) readers.push_back(last);
  return readers;
}

// The lanes of C's, and what the last stage's make until the first stage's F has read it.
void AddSelfConditioning(const Plan& plan, const std::vector<LayerProfile>& layers, schedule::SimulationCosts* costs) {
  for (size_t s = 1; s < plan.stages.size(); ++s) {
    if (plan.stages[s].rank == plan.stages[s - 1].rank) continue;
    costs->fixed_bytes[plan.stages[s].rank] += layers[plan.stages[s].first_layer - 1].output_bytes;
  }
  const double feedback = layers.back().output_bytes;
  const int32_t first_rank = plan.stages.front().rank;
  const int32_t last_rank = plan.stages.back().rank;
  costs->fixed_bytes[last_rank] += plan.micro_batches * feedback;
  if (first_rank != last_rank) costs->fixed_bytes[first_rank] += feedback;
}

}  // namespace

std::vector<std::vector<int32_t>> FrozenReaders(const Plan& plan) {
  std::vector<std::vector<int32_t>> readers;
  for (const FrozenComponent& component : plan.components) readers.push_back(ReadersOf(plan, component));
  return readers;
}

std::vector<double> SlowdownByRank(const Plan& plan, const Profile& profile) {
  const int32_t ranks = plan.schedule.rank_count();
  std::vector<double> slowdown(ranks, 0);
  for (int32_t of_island = 0; of_island < ranks * plan.replicas; ++of_island) {
    const auto at = static_cast<size_t>(of_island);
    const double own = at < profile.rank_slowdown.size() ? profile.rank_slowdown[at] : 1.0;
    slowdown[of_island % ranks] = std::max(slowdown[of_island % ranks], own);
  }
  return slowdown;
}

double StateBytes(double parameter_bytes) {
  return kStatesPerParameter * parameter_bytes;
}

double FrozenBytes(const Plan& plan, const Profile& profile) {
  double bytes = 0;
  double between = 0;
  for (const FrozenComponentProfile& component : profile.frozen) {
    bytes += 2 * OutputBytes(plan, component);
    for (const FrozenLayerProfile& layer : component.layers) {
      bytes += layer.parameter_bytes;
      between = std::max(between, layer.output_bytes * plan.micro_batches * plan.micro_batch_size);
    }
  }
  return bytes + between;
}

std::vector<double> FrozenBytesByRank(const Plan& plan, const Profile& profile) {
  const int32_t ranks = plan.schedule.rank_count();
  std::vector<double> bytes(ranks, 0);
  if (plan.frozen.empty()) return bytes;
  std::vector<double> between(ranks, 0);
  std::set<std::tuple<int32_t, int32_t, int32_t>> held;  // rank, component, layer
  for (const FrozenPiece& piece : plan.frozen) {
    for (int32_t layer = piece.first_layer; layer < piece.end_layer; ++layer) {
      const FrozenLayerProfile& profiled = profile.frozen[piece.component].layers[layer];
      between[piece.rank] = std::max(between[piece.rank], profiled.output_bytes * piece.samples);
      if (held.emplace(piece.rank, piece.component, layer).second) bytes[piece.rank] += profiled.parameter_bytes;
    }
  }
  for (int32_t rank = 0; rank < ranks; ++rank) bytes[rank] += between[rank];
  const std::vector<std::vector<int32_t>> readers = FrozenReaders(plan);
  for (size_t c = 0; c < readers.size(); ++c) {
    for (const int32_t reader : readers[c]) bytes[reader] += 2 * OutputBytes(plan, profile.frozen[c]);
  }
  return bytes;
}

schedule::SimulationCosts CostsOf(const Plan& plan, const Profile& profile) {
  const std::vector<LayerProfile> layers = LayersAt(profile, plan.micro_batch_size);
  const std::vector<double> slowdown = SlowdownByRank(plan, profile);
  std::vector<uint8_t> recomputed(layers.size(), 0);
  for (const int32_t layer : plan.recomputed_layers) recomputed[layer] = 1;
  schedule::SimulationCosts costs;
  costs.feedback_transfer_seconds = TransferSeconds(profile, layers.back().output_bytes);
  costs.fixed_bytes = FrozenBytesByRank(plan, profile);
  costs.frozen = FrozenCosts(plan, profile, slowdown);
  for (size_t s = 0; s < plan.stages.size(); ++s) {
    const StagePlacement& placement = plan.stages[s];
    costs.stages.push_back(CostOfStage(placement, layers, recomputed, slowdown[placement.rank]));
    double parameters = 0;
    for (int32_t i = placement.first_layer; i < placement.end_layer; ++i) parameters += profile.parameter_bytes[i];
    costs.stages.back().reduce_seconds = ReduceSeconds(plan, profile, parameters);
    costs.stages.back().reduce_bytes = ReduceBytes(plan, profile, placement.rank);
    costs.fixed_bytes[placement.rank] += StateBytes(parameters);
    if (s + 1 == plan.stages.size()) continue;
    const double message = layers[placement.end_layer - 1].output_bytes;
    costs.boundary_transfer_seconds.push_back(TransferSeconds(profile, message));
    const int32_t next_rank = plan.stages[s + 1].rank;
    if (next_rank == placement.rank) continue;
    // One receive buffer per lane: the activation at its reader, its gradient at its maker.
    costs.fixed_bytes[next_rank] += message;
    costs.fixed_bytes[placement.rank] += message;
  }
  if (plan.is_self_conditioned()) AddSelfConditioning(plan, layers, &costs);
  return costs;
}

}  // namespace atl::planner
