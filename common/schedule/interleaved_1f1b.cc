#include <algorithm>

#include "common/base/status_macros.h"
#include "common/schedule/generators.h"
#include "common/schedule/shape.h"

namespace atl::schedule {
namespace {

constexpr int32_t kStagesPerRank = 2;

// The `step`-th forward or backward of a rank: micro-batches go round by `ranks` at a time, over all stages of the rank
// before the next ones; forwards from its first stage, backwards from its last.
Action Step(ActionKind kind, int32_t rank, int32_t ranks, int32_t step) {
  const int32_t round = step / (ranks * kStagesPerRank);
  const int32_t chunk = step / ranks % kStagesPerRank;
  const int32_t local_stage = kind == ActionKind::kForward ? chunk : kStagesPerRank - 1 - chunk;
  return {kind, local_stage * ranks + rank, round * ranks + step % ranks};
}

}  // namespace

absl::StatusOr<Schedule> GenerateInterleaved1F1B(int32_t ranks, int32_t micro_batches) {
  ATOLL_RETURN_IF_ERROR(CheckCounts(ranks, kStagesPerRank, micro_batches));
  const int32_t rounds = (micro_batches + ranks - 1) / ranks;
  const int32_t steps = rounds * ranks * kStagesPerRank;
  Schedule schedule = RoundRobin(ranks, kStagesPerRank, micro_batches);
  for (int32_t rank = 0; rank < ranks; ++rank) {
    auto& actions = schedule.ranks[rank];
    const int32_t warm_up = std::min(steps, (kStagesPerRank - 1) * ranks + 2 * (ranks - rank - 1));
    for (int32_t step = 0; step < warm_up; ++step) actions.push_back(Step(ActionKind::kForward, rank, ranks, step));
    for (int32_t step = warm_up; step < steps; ++step) {
      actions.push_back(Step(ActionKind::kForward, rank, ranks, step));
      actions.push_back(Step(ActionKind::kBackward, rank, ranks, step - warm_up));
    }
    for (int32_t step = steps - warm_up; step < steps; ++step) {
      actions.push_back(Step(ActionKind::kBackward, rank, ranks, step));
    }
  }
  TrimMicroBatches(&schedule, micro_batches);
  return schedule;
}

}  // namespace atl::schedule
