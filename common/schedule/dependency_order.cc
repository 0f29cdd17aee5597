#include "common/schedule/dependency_order.h"

#include <algorithm>
#include <cstddef>

namespace atl::schedule {

ActionIndex::ActionIndex(const Schedule& schedule)
    : stages_(schedule.stages),
      micro_batches_(schedule.micro_batches),
      forward_(static_cast<size_t>(stages_) * static_cast<size_t>(micro_batches_)),
      gradient_(forward_.size()) {
  for (int32_t rank = 0; rank < schedule.rank_count(); ++rank) {
    const auto& actions = schedule.ranks[rank];
    for (int32_t position = 0; position < static_cast<int32_t>(actions.size()); ++position) {
      const Action& action = actions[position];
      if (action.kind == ActionKind::kForward) {
        forward_[At(action.stage, action.micro_batch)] = {rank, position};
      } else if (action.kind == ActionKind::kInputGradient || action.kind == ActionKind::kBackward) {
        gradient_[At(action.stage, action.micro_batch)] = {rank, position};
      }
    }
  }
}

std::optional<ActionPlace> ActionIndex::Producer(const Action& action) const {
  switch (action.kind) {
    case ActionKind::kForward:
      if (action.stage == 0) return std::nullopt;
      return Forward(action.stage - 1, action.micro_batch);
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

DependencyOrder OrderActions(const Schedule& schedule, const ActionIndex& index) {
  DependencyOrder result;
  result.reached.assign(schedule.ranks.size(), 0);
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
      const std::optional<ActionPlace> producer = index.Producer(actions[position]);
      if (producer.has_value() && result.reached[producer->rank] <= producer->position) {
        waiters[producer->rank].push_back(rank);
        break;
      }
      result.order.push_back({rank, position});
      ++position;
    }
    // Who waits for this rank looks again only if it moved: two ranks that wait for each other stay where they are.
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

}  // namespace atl::schedule
