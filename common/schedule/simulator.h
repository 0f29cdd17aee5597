// Event simulation of a schedule under measured or assumed costs. Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/schedule/action.h"

namespace atl::schedule {

// Costs of one stage for one micro-batch; of a reduction, once.
struct StageCost {
  double forward_seconds = 1;
  double input_gradient_seconds = 1;
  double weight_gradient_seconds = 1;
  double activation_bytes = 1;       // kept from F to B, or to I …
  double weight_gradient_bytes = 0;  // … of which this much stays until W; more where I computes layers again
  // Seconds of B, if one pass costs less than I and W apart; negative: their sum.
  double backward_seconds = -1;
  double reduce_seconds = 0;
  double reduce_bytes = 0;  // during the reduction, on top of its gradients
  // Bytes while the action runs, on top of kept ones.
  double forward_transient_bytes = 0;
  double backward_transient_bytes = 0;           // I, W and B
  double self_conditioning_transient_bytes = 0;  // C, which takes as long as F and keeps nothing
};

// Costs of one frozen piece (E). A piece may start when the pieces that it reads have ended, and their output has
// arrived from other ranks.
struct FrozenCost {
  double seconds = 0;
  std::vector<int32_t> reads;   // pieces
  double transfer_seconds = 0;  // for each input that comes from another rank
  double output_bytes = 0;      // kept to the end of the iteration
};

struct SimulationCosts {
  std::vector<StageCost> stages;
  // One hop between two ranks, after the producing action; 0 within one rank. Overlaps compute.
  double transfer_seconds = 0;
  // By boundary, the one after stage s at index s: replaces transfer_seconds if not empty (stages - 1 entries).
  std::vector<double> boundary_transfer_seconds;
  // From the last stage's C to the first stage's F; negative: transfer_seconds.
  double feedback_transfer_seconds = -1;
  std::vector<FrozenCost> frozen;
  // Bytes that each rank holds throughout (weights, gradients, optimizer, EMA, buffers); empty: none.
  std::vector<double> fixed_bytes;
};

struct SimulatedAction {
  Action action;
  double start_seconds = 0;
  double end_seconds = 0;
};

// A simulated schedule. timeline.h derives transfers and memory over time from it.
struct Simulation {
  std::vector<std::vector<SimulatedAction>> ranks;
  double makespan_seconds = 0;
  // Share of the ranks' time without an action: 1 - sum of actions / (ranks * makespan).
  double bubble = 0;
  // Waiting caused by transfers alone, per rank: with free transfers the rank would wait this much less.
  std::vector<double> exposed_transfer_seconds;
  std::vector<double> peak_activation_bytes;  // per rank; what F keeps for I, W and B
  // Per rank: the peak of activations, transients, frozen outputs and fixed_bytes together.
  std::vector<double> peak_bytes;
};

// Runs actions in their ranks' order, each when its rank is free and its inputs have arrived; a reduction has no
// inputs. INVALID_ARGUMENT for a schedule that Validate refuses, costs whose counts differ from the schedule's or that
// are out of range (SIMULATION_COSTS), and frozen pieces whose reads wait for ever (SCHEDULE_DEADLOCK).
absl::StatusOr<Simulation> Simulate(const Schedule& schedule, const SimulationCosts& costs);

// The same, faster, for a schedule that Validate accepts; otherwise undefined.
absl::StatusOr<Simulation> SimulateValid(const Schedule& schedule, const SimulationCosts& costs);

// Returns the duration of an action; of a frozen one, by its piece.
double SecondsOf(const Action& action, const SimulationCosts& costs);

// Returns the transfer time of the input of a stage's action: one hop over the boundary before the stage (F and C) or
// after it, or the feedback (F of the first stage).
double HopSeconds(const Action& action, const SimulationCosts& costs);

}  // namespace atl::schedule
