#include "common/schedule/dependency_order.h"

#include <algorithm>
#include <cstddef>
#include <string>

#include <fmt/format.h>

#include "common/base/errors.h"

namespace atl::schedule {
namespace {

// The first input of `action` that its rank has not reached yet.
std::optional<ActionPlace> MissingInput(const Action& action, const ActionIndex& index, const FrozenReads& reads,
                                        const std::vector<int32_t>& reached) {
  const auto missing = [&reached](ActionPlace place) { return reached[place.rank] <= place.position; };
  if (action.kind == ActionKind::kFrozen) {
    if (reads.empty()) return std::nullopt;
    for (const int32_t piece : reads[action.micro_batch]) {
      if (const ActionPlace place = index.Frozen(piece); missing(place)) return place;
    }
    return std::nullopt;
  }
  const std::optional<ActionPlace> producer = index.Producer(action);
  return producer.has_value() && missing(*producer) ? producer : std::nullopt;
}

}  // namespace

ActionIndex::ActionIndex(const Schedule& schedule)
    : stages_(schedule.stages),
      micro_batches_(schedule.micro_batches),
      forward_(static_cast<size_t>(stages_) * static_cast<size_t>(micro_batches_)),
      gradient_(forward_.size()),
      frozen_(schedule.frozen_pieces) {
  for (int32_t rank = 0; rank < schedule.rank_count(); ++rank) {
    const auto& actions = schedule.ranks[rank];
    for (int32_t position = 0; position < static_cast<int32_t>(actions.size()); ++position) {
      const Action& action = actions[position];
      if (action.kind == ActionKind::kForward) {
        forward_[At(action.stage, action.micro_batch)] = {rank, position};
      } else if (action.kind == ActionKind::kInputGradient || action.kind == ActionKind::kBackward) {
        gradient_[At(action.stage, action.micro_batch)] = {rank, position};
      } else if (action.kind == ActionKind::kFrozen) {
        frozen_[action.micro_batch] = {rank, position};
      } else if (action.kind == ActionKind::kSelfConditioning) {
        self_conditioning_.resize(forward_.size());
        self_conditioning_[At(action.stage, action.micro_batch)] = {rank, position};
      }
    }
  }
}

std::optional<ActionPlace> ActionIndex::Producer(const Action& action) const {
  switch (action.kind) {
    case ActionKind::kForward:
      if (action.stage > 0) return Forward(action.stage - 1, action.micro_batch);
      if (self_conditioned()) return SelfConditioning(stages_ - 1, action.micro_batch);
      return std::nullopt;
    case ActionKind::kSelfConditioning:
      if (action.stage == 0) return std::nullopt;
      return SelfConditioning(action.stage - 1, action.micro_batch);
    case ActionKind::kInputGradient:
    case ActionKind::kBackward:
      if (action.stage + 1 == stages_) return std::nullopt;
      return InputGradient(action.stage + 1, action.micro_batch);
    case ActionKind::kWeightGradient:
    case ActionKind::kFrozen:
    case ActionKind::kReduce:
      return std::nullopt;
  }
  return std::nullopt;
}

DependencyOrder OrderActions(const Schedule& schedule, const ActionIndex& index, const FrozenReads& reads) {
  DependencyOrder result;
  result.reached.assign(schedule.ranks.size(), 0);
  size_t actions_in_all = 0;
  for (const auto& rank : schedule.ranks) actions_in_all += rank.size();
  result.order.reserve(actions_in_all);
  // Ranks that wait for another rank to pass a position; woken when it does, so that the work is linear.
  std::vector<std::vector<int32_t>> waiters(schedule.ranks.size());
  std::vector<int32_t> runnable(schedule.ranks.size());
  for (size_t rank = 0; rank < runnable.size(); ++rank) runnable[rank] = static_cast<int32_t>(rank);
  while (!runnable.empty()) {
    const int32_t rank = runnable.back();
    runnable.pop_back();
    const auto& actions = schedule.ranks[rank];
    int32_t& position = result.reached[rank];
    const int32_t before = position;
    while (position < static_cast<int32_t>(actions.size())) {
      if (const auto missing = MissingInput(actions[position], index, reads, result.reached)) {
        waiters[missing->rank].push_back(rank);
        break;
      }
      result.order.push_back({rank, position});
      ++position;
    }
    // Ranks that wait for this one are checked again only if it moved, so that two ranks that wait for each other stop.
    if (position > before) {
      runnable.insert(runnable.end(), waiters[rank].begin(), waiters[rank].end());
      waiters[rank].clear();
    }
  }
  for (int32_t rank = 0; rank < schedule.rank_count(); ++rank) {
    if (result.reached[rank] < static_cast<int32_t>(schedule.ranks[rank].size())) result.stuck.push_back(rank);
  }
  return result;
}

absl::Status DeadlockError(const Schedule& schedule, const ActionIndex& index, const FrozenReads& reads,
                           const DependencyOrder& order) {
  const auto action_at = [&](ActionPlace place) { return schedule.ranks[place.rank][place.position]; };
  const auto stands = [&](int32_t rank) { return ActionPlace{rank, order.reached[rank]}; };
  const auto waits_for = [&](int32_t rank) {
    return *MissingInput(action_at(stands(rank)), index, reads, order.reached);
  };
  // Every stuck rank waits for a stuck rank. After as many steps as there are ranks, the walk is on the ring.
  int32_t rank = order.stuck.front();
  for (size_t i = 0; i < schedule.ranks.size(); ++i) rank = waits_for(rank).rank;
  const int32_t first = rank;
  std::string ring;
  int shown = 0;
  do {
    const ActionPlace awaited = waits_for(rank);
    if (shown == 0) {
      ring = fmt::format("schedule: rank {}, position {}, {}: waits for ever for {} of rank {}, position {}", rank,
                         order.reached[rank], ToString(action_at(stands(rank))), ToString(action_at(awaited)),
                         awaited.rank, awaited.position);
    } else {
      ring += fmt::format("; rank {} stops before it at position {}, {}, and waits for {} of rank {}", rank,
                          order.reached[rank], ToString(action_at(stands(rank))), ToString(action_at(awaited)),
                          awaited.rank);
    }
    rank = awaited.rank;
  } while (rank != first && ++shown < 4);
  return MakeError(absl::StatusCode::kInvalidArgument, "SCHEDULE_DEADLOCK",
                   rank == first && shown == 0 ? ring + ", which comes after it" : ring);
}

}  // namespace atl::schedule
