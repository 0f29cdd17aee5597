#include "common/schedule/simulator.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "common/base/errors.h"
#include "common/base/status_macros.h"
#include "common/schedule/dependency_order.h"
#include "common/schedule/memory.h"

namespace atl::schedule {
namespace {

bool Usable(double value) {
  return std::isfinite(value) && value >= 0;
}

template <typename... Parts>
absl::Status CostsError(fmt::format_string<Parts...> format, Parts&&... parts) {
  return MakeError(absl::StatusCode::kInvalidArgument, "SIMULATION_COSTS",
                   "simulation: " + fmt::format(format, std::forward<Parts>(parts)...));
}

absl::Status CheckStages(const Schedule& schedule, const SimulationCosts& costs) {
  if (costs.stages.size() != static_cast<size_t>(schedule.stages)) {
    return CostsError("expected costs of {} stages, found {}", schedule.stages, costs.stages.size());
  }
  for (size_t stage = 0; stage < costs.stages.size(); ++stage) {
    const StageCost& cost = costs.stages[stage];
    if (!Usable(cost.forward_seconds) || !Usable(cost.input_gradient_seconds) ||
        !Usable(cost.weight_gradient_seconds) || !std::isfinite(cost.backward_seconds) ||
        !Usable(cost.reduce_seconds) || !Usable(cost.reduce_bytes) || !Usable(cost.activation_bytes) ||
        !Usable(cost.weight_gradient_bytes) || !Usable(cost.forward_transient_bytes) ||
        !Usable(cost.backward_transient_bytes) || !Usable(cost.self_conditioning_transient_bytes)) {
      return CostsError("stage {}: expected finite costs of at least 0", stage);
    }
  }
  return absl::OkStatus();
}

absl::Status CheckFrozenCosts(const Schedule& schedule, const SimulationCosts& costs) {
  if (costs.frozen.size() != static_cast<size_t>(schedule.frozen_pieces)) {
    return CostsError("expected costs of {} frozen pieces, found {}", schedule.frozen_pieces, costs.frozen.size());
  }
  for (size_t piece = 0; piece < costs.frozen.size(); ++piece) {
    const FrozenCost& cost = costs.frozen[piece];
    if (!Usable(cost.seconds) || !Usable(cost.transfer_seconds) || !Usable(cost.output_bytes)) {
      return CostsError("frozen piece {}: expected finite costs of at least 0", piece);
    }
    for (const int32_t read : cost.reads) {
      if (read < 0 || read >= schedule.frozen_pieces) {
        return CostsError("frozen piece {}: expected to read pieces below {}, found {}", piece, schedule.frozen_pieces,
                          read);
      }
    }
  }
  return absl::OkStatus();
}

absl::Status CheckCosts(const Schedule& schedule, const SimulationCosts& costs) {
  ATOLL_RETURN_IF_ERROR(CheckStages(schedule, costs));
  ATOLL_RETURN_IF_ERROR(CheckFrozenCosts(schedule, costs));
  if (!Usable(costs.transfer_seconds)) {
    return CostsError("expected transfer_seconds of at least 0, found {}", costs.transfer_seconds);
  }
  if (!std::isfinite(costs.feedback_transfer_seconds)) {
    return CostsError("expected a finite feedback_transfer_seconds, found {}", costs.feedback_transfer_seconds);
  }
  if (!costs.boundary_transfer_seconds.empty() &&
      costs.boundary_transfer_seconds.size() + 1 != static_cast<size_t>(schedule.stages)) {
    return CostsError("expected boundary_transfer_seconds of {} boundaries, found {}", schedule.stages - 1,
                      costs.boundary_transfer_seconds.size());
  }
  if (!costs.fixed_bytes.empty() && costs.fixed_bytes.size() != schedule.ranks.size()) {
    return CostsError("expected fixed_bytes of {} ranks, found {}", schedule.ranks.size(), costs.fixed_bytes.size());
  }
  if (!std::all_of(costs.boundary_transfer_seconds.begin(), costs.boundary_transfer_seconds.end(), Usable) ||
      !std::all_of(costs.fixed_bytes.begin(), costs.fixed_bytes.end(), Usable)) {
    return CostsError("expected boundary_transfer_seconds and fixed_bytes of at least 0");
  }
  return absl::OkStatus();
}

bool AnyTransferCost(const SimulationCosts& costs) {
  const auto& boundaries = costs.boundary_transfer_seconds;
  if (costs.feedback_transfer_seconds > 0) return true;
  if (boundaries.empty() ? costs.transfer_seconds > 0
                         : std::any_of(boundaries.begin(), boundaries.end(), [](double s) { return s > 0; })) {
    return true;
  }
  return std::any_of(costs.frozen.begin(), costs.frozen.end(),
                     [](const FrozenCost& cost) { return cost.transfer_seconds > 0; });
}

using Ranks = std::vector<std::vector<SimulatedAction>>;

// Every action starts when its rank is free and its inputs have arrived. `order` has producers before their readers.
Ranks Timeline(const Schedule& schedule, const SimulationCosts& costs, bool free_transfers, const ActionIndex& index,
               const DependencyOrder& order) {
  Ranks ranks(schedule.ranks.size());
  for (size_t rank = 0; rank < ranks.size(); ++rank) ranks[rank].resize(schedule.ranks[rank].size());
  for (const ActionPlace& place : order.order) {
    const Action& action = schedule.ranks[place.rank][place.position];
    double start = place.position == 0 ? 0 : ranks[place.rank][place.position - 1].end_seconds;
    const auto wait_for = [&](ActionPlace producer, double hop) {
      const bool moves = producer.rank != place.rank && !free_transfers;
      start = std::max(start, ranks[producer.rank][producer.position].end_seconds + (moves ? hop : 0));
    };
    if (action.kind == ActionKind::kFrozen) {
      const FrozenCost& cost = costs.frozen[action.micro_batch];
      for (const int32_t piece : cost.reads) wait_for(index.Frozen(piece), cost.transfer_seconds);
    } else if (const std::optional<ActionPlace> producer = index.Producer(action)) {
      wait_for(*producer, HopSeconds(action, costs));
    }
    ranks[place.rank][place.position] = {action, start, start + SecondsOf(action, costs)};
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

// Actions of a rank follow each other: how much it holds does not depend on when they run.
void AddPeaks(const Schedule& schedule, const SimulationCosts& costs, Simulation* simulation) {
  for (size_t rank = 0; rank < schedule.ranks.size(); ++rank) {
    double activations = 0;
    double activation_peak = 0;
    double held = costs.fixed_bytes.empty() ? 0 : costs.fixed_bytes[rank];
    double peak = held;
    for (const Action& action : schedule.ranks[rank]) {
      const MemoryChange change = MemoryChangeOf(action, costs);
      held += change.kept_bytes;
      peak = std::max(peak, held + change.transient_bytes);
      held -= change.freed_bytes;
      if (action.kind == ActionKind::kFrozen) continue;
      activations += change.kept_bytes;
      activation_peak = std::max(activation_peak, activations);
      activations -= change.freed_bytes;
    }
    simulation->peak_activation_bytes.push_back(activation_peak);
    simulation->peak_bytes.push_back(peak);
  }
}

}  // namespace

double SecondsOf(const Action& action, const SimulationCosts& costs) {
  if (action.kind == ActionKind::kFrozen) return costs.frozen[action.micro_batch].seconds;
  const StageCost& cost = costs.stages[action.stage];
  switch (action.kind) {
    case ActionKind::kForward:
    case ActionKind::kSelfConditioning:
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

double HopSeconds(const Action& action, const SimulationCosts& costs) {
  const bool forward = action.kind == ActionKind::kForward || action.kind == ActionKind::kSelfConditioning;
  const int32_t boundary = forward ? action.stage - 1 : action.stage;
  if (boundary < 0) {
    return costs.feedback_transfer_seconds >= 0 ? costs.feedback_transfer_seconds : costs.transfer_seconds;
  }
  return costs.boundary_transfer_seconds.empty() ? costs.transfer_seconds : costs.boundary_transfer_seconds[boundary];
}

MemoryChange MemoryChangeOf(const Action& action, const SimulationCosts& costs) {
  if (action.kind == ActionKind::kFrozen) return {.kept_bytes = costs.frozen[action.micro_batch].output_bytes};
  const StageCost& cost = costs.stages[action.stage];
  switch (action.kind) {
    case ActionKind::kForward:
      return {.kept_bytes = cost.activation_bytes, .transient_bytes = cost.forward_transient_bytes};
    case ActionKind::kInputGradient:
      return {.transient_bytes = cost.backward_transient_bytes,
              .freed_bytes = cost.activation_bytes - cost.weight_gradient_bytes};
    case ActionKind::kWeightGradient:
      return {.transient_bytes = cost.backward_transient_bytes, .freed_bytes = cost.weight_gradient_bytes};
    case ActionKind::kBackward:
      return {.transient_bytes = cost.backward_transient_bytes, .freed_bytes = cost.activation_bytes};
    case ActionKind::kSelfConditioning:
      return {.transient_bytes = cost.self_conditioning_transient_bytes};
    case ActionKind::kReduce:
      return {.transient_bytes = cost.reduce_bytes};
    case ActionKind::kFrozen:
      break;
  }
  return {};
}

absl::StatusOr<Simulation> Simulate(const Schedule& schedule, const SimulationCosts& costs) {
  ATOLL_RETURN_IF_ERROR(Validate(schedule));
  return SimulateValid(schedule, costs);
}

absl::StatusOr<Simulation> SimulateValid(const Schedule& schedule, const SimulationCosts& costs) {
  ATOLL_RETURN_IF_ERROR(CheckCosts(schedule, costs));
  FrozenReads reads;
  for (const FrozenCost& cost : costs.frozen) reads.push_back(cost.reads);
  const ActionIndex index(schedule);
  const DependencyOrder order = OrderActions(schedule, index, reads);
  if (!order.stuck.empty()) return DeadlockError(schedule, index, reads, order);

  Simulation result;
  result.ranks = Timeline(schedule, costs, /*free_transfers=*/false, index, order);
  double busy = 0;
  for (const auto& actions : result.ranks) {
    if (!actions.empty()) result.makespan_seconds = std::max(result.makespan_seconds, actions.back().end_seconds);
    for (const SimulatedAction& action : actions) busy += action.end_seconds - action.start_seconds;
  }
  if (result.makespan_seconds > 0) {
    result.bubble = 1 - busy / (static_cast<double>(result.ranks.size()) * result.makespan_seconds);
  }
  result.exposed_transfer_seconds.assign(result.ranks.size(), 0);
  if (AnyTransferCost(costs)) {
    const Ranks free = Timeline(schedule, costs, /*free_transfers=*/true, index, order);
    for (size_t rank = 0; rank < free.size(); ++rank) {
      result.exposed_transfer_seconds[rank] =
          std::max(0.0, WaitingSeconds(result.ranks[rank]) - WaitingSeconds(free[rank]));
    }
  }
  AddPeaks(schedule, costs, &result);
  return result;
}

}  // namespace atl::schedule
