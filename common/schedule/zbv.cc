#include <algorithm>
#include <array>

#include "common/base/status_macros.h"
#include "common/schedule/generators.h"
#include "common/schedule/shape.h"

namespace atl::schedule {
namespace {

// One rank's actions, each kind of its two stages in micro-batch order: stage 0 here is the one on the way down the V,
// 1 the one on the way up.
class RankActions {
 public:
  RankActions(std::vector<Action>* actions, int32_t down, int32_t up) : actions_(actions), stages_{down, up} {}

  void Forward(int side) { Add(ActionKind::kForward, side, &forwards_[side]); }
  void InputGradient(int side) { Add(ActionKind::kInputGradient, side, &input_gradients_[side]); }
  void WeightGradient(int side) { Add(ActionKind::kWeightGradient, side, &weight_gradients_[side]); }

  int32_t forwards(int side) const { return forwards_[side]; }
  int32_t input_gradients(int side) const { return input_gradients_[side]; }
  int32_t weight_gradients(int side) const { return weight_gradients_[side]; }

 private:
  void Add(ActionKind kind, int side, int32_t* count) { actions_->push_back({kind, stages_[side], (*count)++}); }

  std::vector<Action>* actions_;
  std::array<int32_t, 2> stages_;
  std::array<int32_t, 2> forwards_{};
  std::array<int32_t, 2> input_gradients_{};
  std::array<int32_t, 2> weight_gradients_{};
};

constexpr int kDown = 0;
constexpr int kUp = 1;

void Backward(RankActions* rank, int side) {
  rank->InputGradient(side);
  rank->WeightGradient(side);
}

// As ScheduleZBVZeroBubble of torch.distributed.pipelining, which is the paper's schedule for equal costs. Needs
// micro_batches >= 2 ranks - 1.
void FillRank(int32_t index, int32_t ranks, int32_t micro_batches, RankActions* rank) {
  for (int32_t i = 0; i < 2 * (ranks - index) - 1; ++i) rank->Forward(kDown);
  for (int32_t i = 0; i < index; ++i) {
    rank->Forward(kUp);
    rank->Forward(kDown);
  }
  for (int32_t i = 0; i < ranks - index; ++i) {
    rank->Forward(kUp);
    Backward(rank, kUp);
  }
  while (rank->forwards(kUp) < micro_batches) {
    if (rank->forwards(kDown) < micro_batches) rank->Forward(kDown);
    Backward(rank, kDown);
    rank->Forward(kUp);
    Backward(rank, kUp);
  }
  for (int32_t i = 0; i < index; ++i) {
    rank->InputGradient(kDown);
    rank->InputGradient(kUp);
  }
  for (int32_t i = 0; i < ranks - index; ++i) Backward(rank, kDown);
  while (rank->weight_gradients(kUp) < micro_batches) rank->WeightGradient(kUp);
  while (rank->weight_gradients(kDown) < micro_batches) rank->WeightGradient(kDown);
}

}  // namespace

absl::StatusOr<Schedule> GenerateZbv(int32_t ranks, int32_t micro_batches) {
  ATOLL_RETURN_IF_ERROR(CheckCounts(ranks, 2, micro_batches));
  const int32_t padded = std::max(micro_batches, 2 * ranks - 1);
  Schedule schedule = VPlacement(ranks, padded);
  for (int32_t rank = 0; rank < ranks; ++rank) {
    RankActions actions(&schedule.ranks[rank], rank, 2 * ranks - 1 - rank);
    FillRank(rank, ranks, padded, &actions);
  }
  TrimMicroBatches(&schedule, micro_batches);
  MergeBackwards(&schedule);
  return schedule;
}

}  // namespace atl::schedule
