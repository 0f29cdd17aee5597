// Schedule generators, one file each. Pure.
//
// Every generator takes ranks and any number of micro-batches from 1, and makes a schedule that Validate and
// AccumulatesInOrder accept. INVALID_ARGUMENT (SCHEDULE_COUNTS) when a count is below one, ranks are above 4096, or
// stages x micro-batches above a million.
//
// Zero-bubble and V schedules split the backward (arXiv 2401.10241): I is the gradient of the stage's inputs, which the
// previous stage waits for; W the gradient of its weights, which no stage waits for. W of the same micro-batch right
// after I is written B where that keeps no stage waiting at equal costs (see MergeBackwards). No stage waits for I of
// stage 0: it computes no gradient of inputs, and a runtime may do all its work in W. It keeps its token, as PyTorch's
// runtime expects.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "common/schedule/action.h"

namespace atl::schedule {

// GPipe (Huang et al. 2019): all forwards, then all backwards, stage s on rank s. Both loops in micro-batch order, so
// that gradients accumulate as in plain training. Bubble (p - 1)(f + b + w), all micro-batches held.
absl::StatusOr<Schedule> GenerateGPipe(int32_t ranks, int32_t micro_batches);

// 1F1B, also PipeDream-Flush (Narayanan et al. 2021): ranks - s - 1 warm-up forwards on stage s, then one forward,
// one backward. Bubble (p - 1)(f + b + w); stage s holds p - s micro-batches.
absl::StatusOr<Schedule> Generate1F1B(int32_t ranks, int32_t micro_batches);

// Interleaved 1F1B (Narayanan et al. 2021) with two stages per rank, s and s + ranks: half the bubble of 1F1B for more
// memory and twice the messages. The paper requires the micro-batches to be a multiple of the ranks. For other counts
// the schedule is made for the next multiple, without the surplus micro-batches.
absl::StatusOr<Schedule> GenerateInterleaved1F1B(int32_t ranks, int32_t micro_batches);

// ZB-H1 (Qi et al. 2023): 1F1B whose weight gradients wait, rank s's s micro-batches behind its input gradients. Bubble
// (p - 1)(f + b - w); every rank holds at most p micro-batches, as rank 0 of 1F1B.
absl::StatusOr<Schedule> GenerateZbH1(int32_t ranks, int32_t micro_batches);

// ZB-H2 (Qi et al. 2023): up to 2p - 1 micro-batches on each rank. At equal costs and with at least 2p - 1
// micro-batches no rank is idle between its first action and its last; ranks start one forward after each other.
absl::StatusOr<Schedule> GenerateZbH2(int32_t ranks, int32_t micro_batches);

// V placement: stages r and 2p - 1 - r on rank r, so that the first and the last share rank 0.
//
// ZBV (Qi et al. 2024, arXiv 2405.15362): no idle time between a rank's first action and its last at equal costs and
// with at least 2p - 1 micro-batches (for fewer, the schedule is made for 2p - 1, without the surplus, as PyTorch
// does); p micro-batches' activations on every rank.
absl::StatusOr<Schedule> GenerateZbv(int32_t ranks, int32_t micro_batches);

// V-Half and V-Min (same paper): one micro-batch's building block, repeated every six passes. Activations of (p + 2) /
// 2 and (p + 4) / 3 micro-batches, rounded down, on every rank; about 1/2 and 2/3 of 1F1B's bubble at equal costs.
// V-Min is slower than 1F1B where b > f: ask the simulator.
absl::StatusOr<Schedule> GenerateVHalf(int32_t ranks, int32_t micro_batches);
absl::StatusOr<Schedule> GenerateVMin(int32_t ranks, int32_t micro_batches);

struct GeneratorInfo {
  std::string_view name;
  int32_t stages_per_rank = 1;
  absl::StatusOr<Schedule> (*generate)(int32_t ranks, int32_t micro_batches) = nullptr;
};

// Returns all generators, in the order in which they are shown.
std::span<const GeneratorInfo> Generators();
std::vector<std::string_view> GeneratorNames();

// INVALID_ARGUMENT (SCHEDULE_UNKNOWN) lists the known names.
absl::StatusOr<GeneratorInfo> FindGenerator(std::string_view name);

// Generates by name. The schedule has ranks * stages_per_rank stages.
absl::StatusOr<Schedule> Generate(std::string_view name, int32_t ranks, int32_t micro_batches);

}  // namespace atl::schedule
