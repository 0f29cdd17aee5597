// Frozen work in the bubbles of a pipeline (DiffusionPipe, Tian et al. 2024, with partial batches): assigns samples of
// frozen layers to ranks, between their other actions. Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "common/planner/profile.h"
#include "common/schedule/action.h"
#include "common/schedule/simulator.h"

namespace atl::planner {

// Frozen layers over some samples of the batch, on one rank: the work of action E<i>, with i the index in the plan.
struct FrozenPiece {
  int32_t component = 0;
  int32_t first_layer = 0;
  int32_t end_layer = 0;
  int32_t rank = 0;  // of the pipeline
  int32_t first_sample = 0;
  int32_t samples = 0;
  bool operator==(const FrozenPiece&) const = default;
};

struct FillRequest {
  schedule::Schedule schedule;      // without frozen pieces
  schedule::SimulationCosts costs;  // of it
  int32_t batch = 0;                // samples of one pipeline and iteration
  std::vector<double> slowdown;     // by rank; empty: all 1
  // By component: ranks that must have its output before the next iteration.
  std::vector<std::vector<int32_t>> readers;
  bool in_bubbles = true;  // false: all frozen work after the flush
  // Variants of the greedy rule to try; the shortest iteration wins.
  int32_t effort = 64;
};

struct Fill {
  schedule::Schedule schedule;  // with E actions
  std::vector<FrozenPiece> pieces;
  double iteration_seconds = 0;  // until the last action has ended and every reader has its outputs
};

// Places the frozen work of `profile`, which must pass CheckProfile, for the next iteration into this one.
// Micro-batches keep their order on every rank.
//
// A rank that waits for its next action runs the ready piece that uses most of the time left: the whole batch if it
// fits, else a sub-batch (multiples of the smallest size measured), so that ranks that wait together share a layer.
// Time left ends at the latest start with which the iteration still meets a target, not at the end of the gap: a gap
// may grow into slack that follows, and small gaps merge into one. The search finds the shortest target that all frozen
// work meets; work that cannot meet it runs after the flush, shared by all ranks. Inputs from other ranks cost latency
// and bandwidth; the outputs must reach their readers. Every rank can read the batch itself.
//
// If that makes the iteration longer by no more than the profile's time_error, every rank takes its own samples through
// all layers instead. A late rank then delays no other rank's pieces.
absl::StatusOr<Fill> FillBubbles(const FillRequest& request, const Profile& profile);

}  // namespace atl::planner
