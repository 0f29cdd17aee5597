#include "common/schedule/self_conditioning.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <queue>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "common/base/errors.h"
#include "common/base/status_macros.h"
#include "common/schedule/dependency_order.h"

namespace atl::schedule {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();
// Times that differ by rounding alone are the same moment.
constexpr double kMoment = 1e-12;

bool IsSelfConditioning(const Action& action) {
  return action.kind == ActionKind::kSelfConditioning;
}

// Runs all ranks on one clock; every rank chooses as it goes.
class Merger {
 public:
  Merger(const Schedule& schedule, const SimulationCosts& costs)
      : schedule_(schedule), costs_(costs), index_(schedule), ranks_(schedule.ranks.size()) {
    for (const Action& action : schedule.ranks[schedule.rank_of_stage.front()]) {
      if (action.kind == ActionKind::kForward && action.stage == 0) order_.push_back(action.micro_batch);
    }
    for (int32_t stage = 0; stage < schedule.stages; ++stage) {
      ranks_[schedule.rank_of_stage[stage]].stages.push_back(stage);
    }
    next_.assign(schedule.stages, 0);
    ends_.resize(schedule.ranks.size());
    conditioned_.assign(schedule.stages, std::vector<double>(schedule.micro_batches, kNever));
    readers_.resize(costs.frozen.size());
    for (int32_t rank = 0; rank < schedule.rank_count(); ++rank) {
      for (const Action& action : schedule.ranks[rank]) {
        if (action.kind != ActionKind::kFrozen) continue;
        for (const int32_t piece : costs.frozen[action.micro_batch].reads) readers_[piece].push_back(rank);
      }
    }
  }

  Schedule Merge() {
    merged_ = schedule_;
    for (auto& rank : merged_.ranks) rank.clear();
    for (int32_t rank = 0; rank < schedule_.rank_count(); ++rank) Wake(rank, 0);
    while (!awake_.empty()) {
      const auto [time, rank] = awake_.top();
      awake_.pop();
      if (ranks_[rank].wakes_at != time) continue;  // it was woken earlier
      ranks_[rank].wakes_at = kNever;
      const Choice choice = Choose(rank);
      if (choice.start > time) {
        Wake(rank, choice.start);
      } else {
        Run(rank, choice);
      }
    }
    return std::move(merged_);
  }

 private:
  struct RankState {
    std::vector<int32_t> stages;  // ascending
    size_t next = 0;              // of the schedule's own actions
    double free_at = 0;
    double wakes_at = kNever;
  };

  struct Choice {
    double start = kNever;
    Action action;
  };

  double HopTo(int32_t rank, int32_t from_rank, const Action& reader) const {
    return from_rank == rank ? 0 : HopSeconds(reader, costs_);
  }

  double EndOf(ActionPlace place) const {
    const auto& ends = ends_[place.rank];
    return static_cast<size_t>(place.position) < ends.size() ? ends[place.position] : kNever;
  }

  // Returns the time when the action's inputs arrive; infinite while their producer has not begun.
  double Ready(int32_t rank, const Action& action) const {
    if (action.kind == ActionKind::kFrozen) {
      const FrozenCost& cost = costs_.frozen[action.micro_batch];
      double ready = 0;
      for (const int32_t piece : cost.reads) {
        const ActionPlace place = index_.Frozen(piece);
        ready = std::max(ready, EndOf(place) + (place.rank == rank ? 0 : cost.transfer_seconds));
      }
      return ready;
    }
    const bool forward = action.kind == ActionKind::kForward && action.stage == 0;
    if (forward || IsSelfConditioning(action)) {
      if (!forward && action.stage == 0) return 0;
      const int32_t from = forward ? schedule_.stages - 1 : action.stage - 1;
      return conditioned_[from][action.micro_batch] + HopTo(rank, schedule_.rank_of_stage[from], action);
    }
    const std::optional<ActionPlace> producer = index_.Producer(action);
    return producer.has_value() ? EndOf(*producer) + HopTo(rank, producer->rank, action) : 0;
  }

  // Returns the rank's next action if no other rank acts before; a C if two could start at once.
  Choice Choose(int32_t rank) const {
    const RankState& state = ranks_[rank];
    Choice best;
    const auto consider = [&](const Action& action) {
      const double start = std::max(state.free_at, Ready(rank, action));
      if (start < best.start - kMoment) best = {start, action};
    };
    for (auto stage = state.stages.rbegin(); stage != state.stages.rend(); ++stage) {
      if (next_[*stage] == order_.size()) continue;
      consider({ActionKind::kSelfConditioning, *stage, order_[next_[*stage]]});
    }
    if (state.next < schedule_.ranks[rank].size()) consider(schedule_.ranks[rank][state.next]);
    return best;
  }

  void Run(int32_t rank, const Choice& choice) {
    const Action& action = choice.action;
    const double end = choice.start + SecondsOf(action, costs_);
    ranks_[rank].free_at = end;
    merged_.ranks[rank].push_back(action);
    if (IsSelfConditioning(action)) {
      ++next_[action.stage];
      conditioned_[action.stage][action.micro_batch] = end;
    } else {
      ++ranks_[rank].next;
      ends_[rank].push_back(end);
    }
    Wake(rank, end);
    WakeReaders(action, end);
  }

  // Wakes the readers of the action's output, which arrives at `end` or a hop later.
  void WakeReaders(const Action& action, double end) {
    switch (action.kind) {
      case ActionKind::kForward:
        if (action.stage + 1 < schedule_.stages) Wake(schedule_.rank_of_stage[action.stage + 1], end);
        break;
      case ActionKind::kSelfConditioning:
        Wake(schedule_.rank_of_stage[(action.stage + 1) % schedule_.stages], end);
        break;
      case ActionKind::kInputGradient:
      case ActionKind::kBackward:
        if (action.stage > 0) Wake(schedule_.rank_of_stage[action.stage - 1], end);
        break;
      case ActionKind::kFrozen:
        for (const int32_t reader : readers_[action.micro_batch]) Wake(reader, end);
        break;
      case ActionKind::kWeightGradient:
      case ActionKind::kReduce:
        break;
    }
  }

  // The rank looks for something to run at `time`, if it does not before.
  void Wake(int32_t rank, double time) {
    RankState& state = ranks_[rank];
    const double start = std::max(time, state.free_at);
    if (start >= state.wakes_at) return;
    state.wakes_at = start;
    awake_.emplace(start, rank);
  }

  const Schedule& schedule_;
  const SimulationCosts& costs_;
  const ActionIndex index_;
  std::vector<int32_t> order_;  // micro-batches, as the first stage runs F
  std::vector<RankState> ranks_;
  std::vector<size_t> next_;                      // by stage: the C that comes next, in order_
  std::vector<std::vector<double>> ends_;         // by rank and position in `schedule`, of those that have begun
  std::vector<std::vector<double>> conditioned_;  // by stage and micro-batch: when C ends
  std::vector<std::vector<int32_t>> readers_;     // by frozen piece: ranks
  std::priority_queue<std::pair<double, int32_t>, std::vector<std::pair<double, int32_t>>, std::greater<>> awake_;
  Schedule merged_;
};

absl::Status Mismatch(const std::string& message) {
  return MakeError(absl::StatusCode::kInvalidArgument, "SCHEDULE_MISMATCH", "self-conditioned schedule: " + message);
}

absl::Status CheckCount(std::string_view what, int32_t expected, int32_t found) {
  if (expected == found) return absl::OkStatus();
  return Mismatch(fmt::format("expected the schedule's {} {}, found {}", expected, what, found));
}

// One rank's line, C's left out, against that of the schedule.
absl::Status CheckRank(size_t rank, const std::vector<Action>& with, const std::vector<Action>& without) {
  size_t next = 0;
  for (size_t position = 0; position < with.size(); ++position) {
    if (IsSelfConditioning(with[position])) continue;
    if (next < without.size() && with[position] == without[next]) {
      ++next;
      continue;
    }
    return Mismatch(fmt::format("rank {}, position {}, {}: expected {}, as in the schedule, or a C", rank, position,
                                ToString(with[position]), next < without.size() ? ToString(without[next]) : "the end"));
  }
  if (next == without.size()) return absl::OkStatus();
  return Mismatch(
      fmt::format("rank {}: expected {}, as in the schedule, found the end", rank, ToString(without[next])));
}

}  // namespace

Schedule AddSelfConditioning(const Schedule& schedule, const SimulationCosts& costs) {
  return Merger(schedule, costs).Merge();
}

absl::Status CheckSelfConditioned(const Schedule& self_conditioned, const Schedule& schedule) {
  ATOLL_RETURN_IF_ERROR(CheckCount("ranks", schedule.rank_count(), self_conditioned.rank_count()));
  ATOLL_RETURN_IF_ERROR(CheckCount("stages", schedule.stages, self_conditioned.stages));
  ATOLL_RETURN_IF_ERROR(CheckCount("micro-batches", schedule.micro_batches, self_conditioned.micro_batches));
  ATOLL_RETURN_IF_ERROR(CheckCount("frozen pieces", schedule.frozen_pieces, self_conditioned.frozen_pieces));
  bool any = false;
  for (size_t rank = 0; rank < schedule.ranks.size(); ++rank) {
    const std::vector<Action>& without = schedule.ranks[rank];
    const std::vector<Action>& with = self_conditioned.ranks[rank];
    const auto found = std::find_if(without.begin(), without.end(), IsSelfConditioning);
    if (found != without.end()) {
      return Mismatch(fmt::format("rank {}, position {}, {}: expected no C in the schedule beside it", rank,
                                  found - without.begin(), ToString(*found)));
    }
    any = any || std::any_of(with.begin(), with.end(), IsSelfConditioning);
    ATOLL_RETURN_IF_ERROR(CheckRank(rank, with, without));
  }
  return any ? absl::OkStatus() : Mismatch("expected a C of every stage and micro-batch, found none");
}

}  // namespace atl::schedule
