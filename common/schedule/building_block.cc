#include "common/schedule/building_block.h"

#include <algorithm>
#include <array>
#include <deque>
#include <optional>
#include <utility>
#include <vector>

#include "common/schedule/shape.h"

namespace atl::schedule {
namespace {

constexpr int64_t kPeriod = 6;  // two stages, three passes each

struct SlottedAction {
  int64_t slot;
  Action action;
};

// A rank's passes in the order of their slots; weight gradients take the next free ones, oldest first.
std::vector<Action> OrderOfBlock(const BuildingBlock& block, int32_t down, int32_t up, int32_t micro_batches) {
  std::vector<SlottedAction> passes;
  for (int32_t m = 0; m < micro_batches; ++m) {
    passes.push_back({block.forward_down + kPeriod * m, {ActionKind::kForward, down, m}});
    passes.push_back({block.forward_up + kPeriod * m, {ActionKind::kForward, up, m}});
    passes.push_back({block.gradient_up + kPeriod * m, {ActionKind::kInputGradient, up, m}});
    passes.push_back({block.gradient_down + kPeriod * m, {ActionKind::kInputGradient, down, m}});
  }
  std::sort(passes.begin(), passes.end(),
            [](const SlottedAction& a, const SlottedAction& b) { return a.slot < b.slot; });
  std::vector<Action> order;
  order.reserve(passes.size() * 3 / 2);
  std::deque<Action> weight_gradients;
  int64_t slot = 0;
  const auto run_weight_gradients = [&](int64_t until) {
    for (; slot < until && !weight_gradients.empty(); ++slot) {
      order.push_back(weight_gradients.front());
      weight_gradients.pop_front();
    }
  };
  for (const SlottedAction& pass : passes) {
    run_weight_gradients(pass.slot);
    order.push_back(pass.action);
    slot = pass.slot + 1;
    if (pass.action.kind == ActionKind::kInputGradient) {
      weight_gradients.push_back({ActionKind::kWeightGradient, pass.action.stage, pass.action.micro_batch});
    }
  }
  order.insert(order.end(), weight_gradients.begin(), weight_gradients.end());
  return order;
}

// Runs ranks slot by slot, every pass one slot long, and writes down what they run.
class Compaction {
 public:
  explicit Compaction(Schedule ordered)
      : stages_(ordered.stages),
        micro_batches_(ordered.micro_batches),
        ends_(2 * static_cast<size_t>(stages_) * micro_batches_, kNever) {
    for (auto& actions : ordered.ranks) {
      left_ += actions.size();
      peak_ = std::max(peak_, PeakHeld(actions));
      Rank& rank = ranks_.emplace_back();
      rank.done.resize(actions.size(), false);
      for (const Action& action : actions) rank.forwards_left += action.kind == ActionKind::kForward;
      rank.order = std::move(actions);
    }
  }

  std::vector<std::vector<Action>> Run() {
    for (int64_t slot = 0; left_ > 0; ++slot) {
      for (Rank& rank : ranks_) {
        if (const std::optional<size_t> next = Next(rank, slot)) RunAt(rank, *next, slot);
      }
    }
    std::vector<std::vector<Action>> result;
    for (Rank& rank : ranks_) result.push_back(std::move(rank.ran));
    return result;
  }

 private:
  static constexpr int64_t kNever = INT64_MAX;
  static constexpr size_t kLookAhead = 256;

  struct Rank {
    std::vector<Action> order;
    std::vector<bool> done;
    size_t head = 0;  // the first that is not done
    int32_t held = 0;
    size_t forwards_left = 0;
    std::vector<Action> ran;
  };

  static int32_t Holds(ActionKind kind) {
    return kind == ActionKind::kForward ? 1 : kind == ActionKind::kWeightGradient ? -1 : 0;
  }

  static int32_t PeakHeld(const std::vector<Action>& actions) {
    int32_t held = 0;
    int32_t peak = 0;
    for (const Action& action : actions) peak = std::max(peak, held += Holds(action.kind));
    return peak;
  }

  int64_t& End(bool forward, int32_t stage, int32_t micro_batch) {
    return ends_[(static_cast<size_t>(stage) * micro_batches_ + micro_batch) * 2 + (forward ? 0 : 1)];
  }

  bool Ready(const Action& action, int64_t slot) {
    switch (action.kind) {
      case ActionKind::kForward:
        return action.stage == 0 || End(true, action.stage - 1, action.micro_batch) <= slot;
      case ActionKind::kInputGradient:
        return End(true, action.stage, action.micro_batch) <= slot &&
               (action.stage + 1 == stages_ || End(false, action.stage + 1, action.micro_batch) <= slot);
      default:
        return End(false, action.stage, action.micro_batch) <= slot;
    }
  }

  // Returns the rank's action in this slot: the next one in its order, or a later one if the rank had to wait.
  std::optional<size_t> Next(Rank& rank, int64_t slot) {
    if (rank.head == rank.order.size()) return std::nullopt;
    const bool drains = rank.forwards_left == 0;
    const Action& head = rank.order[rank.head];
    if (!(drains && head.kind == ActionKind::kWeightGradient) && Ready(head, slot)) return rank.head;
    for (const ActionKind kind : {ActionKind::kInputGradient, ActionKind::kForward, ActionKind::kWeightGradient}) {
      if (const std::optional<size_t> early = Early(rank, kind, slot)) return early;
    }
    return std::nullopt;
  }

  // The first action of `kind` that is ready, leaves each stage's order as it is, and keeps the peak until its turn
  // would have come.
  std::optional<size_t> Early(const Rank& rank, ActionKind kind, int64_t slot) {
    const size_t end = std::min(rank.order.size(), rank.head + kLookAhead);
    std::array<int32_t, 2> passed{-1, -1};  // stages whose next of this kind is not ready
    int32_t held = rank.held + (kind == ActionKind::kForward ? 1 : 0);
    if (held > peak_) return std::nullopt;
    for (size_t i = rank.head; i < end; ++i) {
      if (rank.done[i]) continue;
      const Action& action = rank.order[i];
      if (action.kind == kind && action.stage != passed[0] && action.stage != passed[1]) {
        if (Ready(action, slot)) return i;
        if (passed[0] >= 0) return std::nullopt;
        passed[0] = action.stage;
      }
      held += Holds(action.kind);
      if (kind == ActionKind::kForward && held > peak_) return std::nullopt;
    }
    return std::nullopt;
  }

  void RunAt(Rank& rank, size_t index, int64_t slot) {
    const Action& action = rank.order[index];
    if (action.kind != ActionKind::kWeightGradient) {
      End(action.kind == ActionKind::kForward, action.stage, action.micro_batch) = slot + 1;
    }
    rank.held += Holds(action.kind);
    rank.forwards_left -= action.kind == ActionKind::kForward;
    rank.ran.push_back(action);
    rank.done[index] = true;
    while (rank.head < rank.order.size() && rank.done[rank.head]) ++rank.head;
    --left_;
  }

  int32_t stages_;
  int32_t micro_batches_;
  int32_t peak_ = 0;  // stages' micro-batches that the fullest rank holds in the given order
  size_t left_ = 0;
  std::vector<int64_t> ends_;  // of F and I by stage and micro-batch
  std::vector<Rank> ranks_;
};

}  // namespace

Schedule RepeatBlocks(const std::vector<BuildingBlock>& blocks, int32_t micro_batches) {
  const auto ranks = static_cast<int32_t>(blocks.size());
  Schedule schedule = VPlacement(ranks, micro_batches);
  for (int32_t rank = 0; rank < ranks; ++rank) {
    schedule.ranks[rank] = OrderOfBlock(blocks[rank], rank, 2 * ranks - 1 - rank, micro_batches);
  }
  schedule.ranks = Compaction(schedule).Run();
  return schedule;
}

}  // namespace atl::schedule
