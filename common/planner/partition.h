// Splits layers into contiguous stages: dynamic programming finds the shortest split within memory. Pure.
//
// Objective, in this order:
//   1. the critical-path bound (M - 1) * T + P of M micro-batches, where T is the largest work of a rank per
//      micro-batch (of all its stages) and P the way of one micro-batch through all stages and back, transfers between
//      ranks included, both on average where some iterations run F twice. Of 1F1B it is the length; for other schedules
//      it orders splits alike: T bounds the steady state, P the ramp;
//   2. the least T;
//   3. the smallest largest stage: with several stages on a rank, the waits between them;
//   4. the earliest ends: early stages hold the most micro-batches.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "common/planner/profile.h"
#include "common/schedule/action.h"

namespace atl::planner {

struct StagePlacement {
  int32_t rank = 0;
  int32_t first_layer = 0;
  int32_t end_layer = 0;  // one past the last
  bool operator==(const StagePlacement&) const = default;
};

// Micro-batches that the stages of a rank hold at one time, by its stages in ascending order.
struct HeldMicroBatches {
  std::vector<int32_t> until_input_gradient;
  std::vector<int32_t> until_weight_gradient;
  bool operator==(const HeldMicroBatches&) const = default;
};

// Returns by rank every combination that a schedule reaches and that none of its other combinations covers.
std::vector<std::vector<HeldMicroBatches>> HeldByRank(const schedule::Schedule& schedule);

enum class Recompute : uint8_t {
  kNever,
  kAuto,    // the cheapest layers, only where the limit needs it
  kAlways,  // every layer
};

struct PartitionRequest {
  std::vector<LayerProfile> layers;  // under one micro-batch
  std::vector<int32_t> rank_of_stage;
  int32_t micro_batches = 1;
  bool split_backward = false;           // I and W cost their sum, not `backward_seconds`
  std::vector<double> slowdown;          // by rank; empty: all 1
  std::vector<double> boundary_seconds;  // one transfer after layer i, at index i; empty: free
  // Share of the iterations in which every stage runs F twice, the first time without a graph (C); 0: none, and no
  // memory for it.
  double self_conditioning_rate = 0;
  Recompute recompute = Recompute::kNever;
  // Memory; without a limit the other fields are not read.
  std::vector<double> limit_bytes;                  // by rank; empty: none
  std::vector<double> fixed_bytes;                  // by layer, whether or not it is recomputed
  std::vector<double> reduce_bytes;                 // by layer, while gradients are summed over replicas; empty: none
  std::vector<std::vector<HeldMicroBatches>> held;  // HeldByRank of the schedule
};

struct Partition {
  std::vector<StagePlacement> stages;
  std::vector<int32_t> recomputed_layers;  // ascending
  double bound_seconds = 0;                // objective 1
  double largest_rank_seconds = 0;         // T
  double largest_stage_seconds = 0;
};

// INVALID_ARGUMENT if there are fewer layers than stages (pipeline.stages, STAGES_OUT_OF_RANGE); FAILED_PRECONDITION
// (MEMORY_LIMIT) if no split fits the limits.
//
// Exact if every rank holds one stage, or stages mirrored as in a V. With other placements, a rank's work counts as
// that of its largest stage times the number of its stages, and its memory is shared out evenly. More than 96 layers
// are planned in groups. The choice of layers to recompute is exact up to some ten layers per rank, and close beyond.
absl::StatusOr<Partition> PartitionLayers(const PartitionRequest& request);

}  // namespace atl::planner
