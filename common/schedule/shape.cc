#include "common/schedule/shape.h"

#include <utility>

#include <fmt/format.h>

#include "common/base/errors.h"
#include "common/schedule/dependency_order.h"
#include "common/schedule/simulator.h"

namespace atl::schedule {
namespace {

constexpr int64_t kMaxStageMicroBatches = 1'000'000;
constexpr int32_t kMaxRanks = 4096;

}  // namespace

absl::Status CheckCounts(int32_t ranks, int32_t stages_per_rank, int32_t micro_batches) {
  if (ranks < 1 || micro_batches < 1) {
    return MakeError(
        absl::StatusCode::kInvalidArgument, "SCHEDULE_COUNTS",
        fmt::format("schedule: expected at least one rank and one micro-batch, found {} and {}", ranks, micro_batches));
  }
  if (ranks > kMaxRanks) {
    return MakeError(absl::StatusCode::kInvalidArgument, "SCHEDULE_COUNTS",
                     fmt::format("schedule: expected at most {} ranks, found {}", kMaxRanks, ranks));
  }
  if (int64_t{ranks} * stages_per_rank * micro_batches > kMaxStageMicroBatches) {
    return MakeError(absl::StatusCode::kInvalidArgument, "SCHEDULE_COUNTS",
                     fmt::format("schedule: expected stages x micro-batches of at most {}, found {} x {}",
                                 kMaxStageMicroBatches, ranks * stages_per_rank, micro_batches));
  }
  return absl::OkStatus();
}

Schedule RoundRobin(int32_t ranks, int32_t stages_per_rank, int32_t micro_batches) {
  Schedule schedule{.stages = ranks * stages_per_rank, .micro_batches = micro_batches};
  schedule.ranks.resize(ranks);
  for (int32_t stage = 0; stage < schedule.stages; ++stage) schedule.rank_of_stage.push_back(stage % ranks);
  return schedule;
}

Schedule OneStagePerRank(int32_t ranks, int32_t micro_batches) {
  return RoundRobin(ranks, 1, micro_batches);
}

Schedule VPlacement(int32_t ranks, int32_t micro_batches) {
  Schedule schedule = RoundRobin(ranks, 2, micro_batches);
  for (int32_t rank = 0; rank < ranks; ++rank) schedule.rank_of_stage[2 * ranks - 1 - rank] = rank;
  return schedule;
}

void TrimMicroBatches(Schedule* schedule, int32_t micro_batches) {
  for (auto& rank : schedule->ranks) {
    std::erase_if(
        rank, [=](const Action& action) { return HasMicroBatch(action.kind) && action.micro_batch >= micro_batches; });
  }
  schedule->micro_batches = micro_batches;
}

void MergeBackwards(Schedule* schedule) {
  const ActionIndex index(*schedule);
  // F, I and W take one slot of time each.
  SimulationCosts costs;
  costs.stages.resize(schedule->stages);
  const absl::StatusOr<Simulation> slots = SimulateValid(*schedule, costs);
  if (!slots.ok()) return;
  // Compares with the slot in which the previous stage reads an input gradient; no stage reads that of stage 0.
  const auto free_to_wait = [&](const Action& action, double weight_gradient_end) {
    if (action.stage == 0) return true;
    const ActionPlace reader = index.InputGradient(action.stage - 1, action.micro_batch);
    return slots->ranks[reader.rank][reader.position].start_seconds > weight_gradient_end;
  };
  for (size_t rank = 0; rank < schedule->ranks.size(); ++rank) {
    const std::vector<Action>& actions = schedule->ranks[rank];
    std::vector<Action> merged;
    merged.reserve(actions.size());
    for (size_t i = 0; i < actions.size(); ++i) {
      const Action& action = actions[i];
      const Action weight_gradient{ActionKind::kWeightGradient, action.stage, action.micro_batch};
      if (action.kind == ActionKind::kInputGradient && i + 1 < actions.size() && actions[i + 1] == weight_gradient &&
          free_to_wait(action, slots->ranks[rank][i + 1].end_seconds)) {
        merged.push_back({ActionKind::kBackward, action.stage, action.micro_batch});
        ++i;
      } else {
        merged.push_back(action);
      }
    }
    schedule->ranks[rank] = std::move(merged);
  }
}

}  // namespace atl::schedule
