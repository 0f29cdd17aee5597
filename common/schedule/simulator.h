// Event simulation of a schedule under measured or assumed costs. Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/schedule/action.h"

namespace atl::schedule {

// Of one stage, for one micro-batch; of a reduction, once.
struct StageCost {
  double forward_seconds = 1;
  double input_gradient_seconds = 1;
  double weight_gradient_seconds = 1;
  double activation_bytes = 1;       // kept from F to B, or to I …
  double weight_gradient_bytes = 0;  // … of which this much stays until W; more where I computes layers again
  // Of B, where one pass costs less than I and W apart; negative: their sum.
  double backward_seconds = -1;
  double reduce_seconds = 0;
  double reduce_bytes = 0;  // while it is reduced, on top of its gradients
  // On top of what is kept, while the action runs.
  double forward_transient_bytes = 0;
  double backward_transient_bytes = 0;           // I, W and B
  double self_conditioning_transient_bytes = 0;  // C, which takes as long as F and keeps nothing
};

// Of one frozen piece (E). A piece may start when the pieces that it reads have ended, and what lies on another rank
// has arrived.
struct FrozenCost {
  double seconds = 0;
  std::vector<int32_t> reads;   // pieces
  double transfer_seconds = 0;  // of each of its inputs that comes from another rank
  double output_bytes = 0;      // kept to the end of the iteration
};

struct SimulationCosts {
  std::vector<StageCost> stages;
  // One hop between two ranks, after the producing action; 0 within one rank. Overlaps compute.
  double transfer_seconds = 0;
  // By boundary, the one after stage s at s: replaces transfer_seconds where it is not empty (stages - 1 entries).
  std::vector<double> boundary_transfer_seconds;
  // From the last stage's C to the first stage's F; negative: transfer_seconds.
  double feedback_transfer_seconds = -1;
  std::vector<FrozenCost> frozen;
  // What each rank holds whatever it does (weights, gradients, optimizer, EMA, buffers); empty: nothing.
  std::vector<double> fixed_bytes;
};

struct SimulatedAction {
  Action action;
  double start_seconds = 0;
  double end_seconds = 0;
};

// What else can be read off it (transfers, memory over time): timeline.h.
struct Simulation {
  std::vector<std::vector<SimulatedAction>> ranks;
  double makespan_seconds = 0;
  // Share of the ranks' time in which they run nothing: 1 - sum of actions / (ranks * makespan).
  double bubble = 0;
  // Waiting that transfers alone caused, per rank: with free transfers the rank would have waited this much less.
  std::vector<double> exposed_transfer_seconds;
  std::vector<double> peak_activation_bytes;  // per rank; what F keeps for I, W and B
  // Per rank: activations, transients, frozen outputs and fixed_bytes together, when they are most.
  std::vector<double> peak_bytes;
};

// Actions run in their ranks' order, each when its rank is free and what it reads has arrived; a reduction waits for
// nothing else. INVALID_ARGUMENT for a schedule that Validate refuses, costs of other counts than the schedule's or out
// of range (SIMULATION_COSTS), and frozen pieces whose reads wait for ever (SCHEDULE_DEADLOCK).
absl::StatusOr<Simulation> Simulate(const Schedule& schedule, const SimulationCosts& costs);

// The same, faster, of a schedule that Validate is known to accept: undefined for another.
absl::StatusOr<Simulation> SimulateValid(const Schedule& schedule, const SimulationCosts& costs);

// How long an action takes; a frozen one by its piece.
double SecondsOf(const Action& action, const SimulationCosts& costs);

// What an action of a stage reads, between ranks: one hop over the boundary before the stage (F and C) or after it, or
// the feedback (F of the first stage).
double HopSeconds(const Action& action, const SimulationCosts& costs);

}  // namespace atl::schedule
