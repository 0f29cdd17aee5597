// Frozen work in the bubbles of a pipeline (DiffusionPipe, Tian et al. 2024, with partial batches): which rank runs
// which samples of which frozen layer, and between which of its other actions. Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "common/planner/profile.h"
#include "common/schedule/action.h"
#include "common/schedule/simulator.h"

namespace atl::planner {

// Frozen layers over some samples of the batch, on one rank: what the action E<i> runs, with i the index in the plan.
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
  // Variants of the greedy rule that are tried for the shortest iteration.
  int32_t effort = 64;
};

struct Fill {
  schedule::Schedule schedule;  // with E actions
  std::vector<FrozenPiece> pieces;
  double iteration_seconds = 0;  // until the last action has ended and the outputs are where they are read
};

// Places the frozen work of `profile`, which CheckProfile accepts, for the next iteration into this one. Micro-batches
// keep their order on every rank.
//
// A rank that waits for its next action runs the ready piece that uses most of the time left: whole batch where it
// fits, else a sub-batch (multiples of the smallest size measured), so that ranks that wait together share a layer.
// Time left is until the latest start with which the iteration still ends by a target, not until the end of the gap: a
// gap may grow into slack that follows, and small gaps into one. The shortest target that all frozen work meets is
// searched for; what cannot meet it runs after the flush, shared by all ranks. Inputs from other ranks are charged
// latency and bandwidth; the outputs must reach their readers. Every rank can read the batch itself.
//
// Where that makes the iteration longer by no more than the profile's time_error, every rank takes its own samples
// through all layers instead: a rank that is late then holds up no other's pieces.
absl::StatusOr<Fill> FillBubbles(const FillRequest& request, const Profile& profile);

}  // namespace atl::planner
