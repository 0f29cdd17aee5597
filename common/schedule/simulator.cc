#include "common/schedule/simulator.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <optional>

#include <fmt/format.h>

#include "common/base/errors.h"
#include "common/base/status_macros.h"
#include "common/schedule/dependency_order.h"

namespace atl::schedule {
namespace {

double Seconds(const StageCost& cost, ActionKind kind) {
  switch (kind) {
    case ActionKind::kForward:
      return cost.forward_seconds;
    case ActionKind::kInputGradient:
      return cost.input_gradient_seconds;
    case ActionKind::kWeightGradient:
      return cost.weight_gradient_seconds;
    case ActionKind::kBackward:
      return cost.backward_seconds >= 0 ? cost.backward_seconds
                                        : cost.input_gradient_seconds + cost.weight_gradient_seconds;
    case ActionKind::kReduce:
      return cost.reduce_seconds;
    case ActionKind::kFrozen:
      break;
  }
  return 0;
}

absl::Status CheckCosts(const Schedule& schedule, const SimulationCosts& costs) {
  if (costs.stages.size() != static_cast<size_t>(schedule.stages)) {
    return MakeError(
        absl::StatusCode::kInvalidArgument, "SIMULATION_COSTS",
        fmt::format("simulation: expected costs of {} stages, found {}", schedule.stages, costs.stages.size()));
  }
  const auto usable = [](double value) { return std::isfinite(value) && value >= 0; };
  for (size_t stage = 0; stage < costs.stages.size(); ++stage) {
    const StageCost& cost = costs.stages[stage];
    if (!usable(cost.forward_seconds) || !usable(cost.input_gradient_seconds) ||
        !usable(cost.weight_gradient_seconds) || !usable(cost.activation_bytes) ||
        !usable(cost.weight_gradient_bytes) || cost.weight_gradient_bytes > cost.activation_bytes) {
      return MakeError(
          absl::StatusCode::kInvalidArgument, "SIMULATION_COSTS",
          fmt::format("simulation: stage {}: expected finite costs of at least 0, and weight_gradient_bytes "
                      "of at most activation_bytes",
                      stage));
    }
  }
  if (!usable(costs.transfer_seconds)) {
    return MakeError(
        absl::StatusCode::kInvalidArgument, "SIMULATION_COSTS",
        fmt::format("simulation: expected transfer_seconds of at least 0, found {}", costs.transfer_seconds));
  }
  return absl::OkStatus();
}

// Every action starts when its rank is free and its input has arrived. `order` has producers before their readers.
std::vector<std::vector<SimulatedAction>> Timeline(const Schedule& schedule, const SimulationCosts& costs,
                                                   double transfer_seconds, const ActionIndex& index,
                                                   const DependencyOrder& order) {
  std::vector<std::vector<SimulatedAction>> ranks(schedule.ranks.size());
  for (size_t rank = 0; rank < ranks.size(); ++rank) ranks[rank].resize(schedule.ranks[rank].size());
  for (const ActionPlace& place : order.order) {
    const Action& action = schedule.ranks[place.rank][place.position];
    double start = place.position == 0 ? 0 : ranks[place.rank][place.position - 1].end_seconds;
    if (const std::optional<ActionPlace> producer = index.Producer(action)) {
      const double hop = producer->rank == place.rank ? 0 : transfer_seconds;
      start = std::max(start, ranks[producer->rank][producer->position].end_seconds + hop);
    }
    ranks[place.rank][place.position] = {action, start, start + Seconds(costs.stages[action.stage], action.kind)};
  }
  return ranks;
}

double WaitingSeconds(const std::vector<SimulatedAction>& rank) {
  double waited = 0;
  double free_at = 0;
  for (const SimulatedAction& action : rank) {
    waited += action.start_seconds - free_at;
    free_at = action.end_seconds;
  }
  return waited;
}

double PeakActivationBytes(const std::vector<Action>& actions, const std::vector<StageCost>& costs) {
  double held = 0;
  double peak = 0;
  for (const Action& action : actions) {
    const StageCost& cost = costs[action.stage];
    switch (action.kind) {
      case ActionKind::kForward:
        held += cost.activation_bytes;
        break;
      case ActionKind::kInputGradient:
        held -= cost.activation_bytes - cost.weight_gradient_bytes;
        break;
      case ActionKind::kWeightGradient:
        held -= cost.weight_gradient_bytes;
        break;
      case ActionKind::kBackward:
        held -= cost.activation_bytes;
        break;
      case ActionKind::kFrozen:
      case ActionKind::kReduce:
        break;
    }
    peak = std::max(peak, held);
  }
  return peak;
}

}  // namespace

absl::StatusOr<Simulation> Simulate(const Schedule& schedule, const SimulationCosts& costs) {
  ATOLL_RETURN_IF_ERROR(Validate(schedule));
  ATOLL_RETURN_IF_ERROR(CheckCosts(schedule, costs));
  const ActionIndex index(schedule);
  const DependencyOrder order = OrderActions(schedule, index);

  Simulation result;
  result.ranks = Timeline(schedule, costs, costs.transfer_seconds, index, order);
  const auto free_transfers = Timeline(schedule, costs, 0, index, order);
  double compute = 0;
  for (size_t rank = 0; rank < result.ranks.size(); ++rank) {
    const auto& actions = result.ranks[rank];
    if (!actions.empty()) result.makespan_seconds = std::max(result.makespan_seconds, actions.back().end_seconds);
    for (const SimulatedAction& action : actions) compute += action.end_seconds - action.start_seconds;
    result.exposed_transfer_seconds.push_back(
        std::max(0.0, WaitingSeconds(actions) - WaitingSeconds(free_transfers[rank])));
    result.peak_activation_bytes.push_back(PeakActivationBytes(schedule.ranks[rank], costs.stages));
  }
  if (result.makespan_seconds > 0) {
    result.bubble = 1 - compute / (static_cast<double>(result.ranks.size()) * result.makespan_seconds);
  }
  return result;
}

}  // namespace atl::schedule
