// Event simulation of a schedule under measured or assumed costs. Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/schedule/action.h"

namespace atl::schedule {

// Costs of one stage for each micro-batch; reduce_seconds and reduce_bytes once per iteration.
struct StageCost {
  double forward_seconds = 1;
  double input_gradient_seconds = 1;
  double weight_gradient_seconds = 1;
  // F keeps these bytes for B, or for I.
  double activation_bytes = 1;
  // I keeps these bytes for W. They are a part of activation_bytes, or more where I computes layers again.
  double weight_gradient_bytes = 0;
  // Seconds of B. Any negative value means the sum of I and W.
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
  // Seconds from the end of an action to the earliest start of its reader on another rank. The transfer keeps
  // neither rank busy. Results reach a reader on the same rank at once.
  double transfer_seconds = 0;
  // If not empty, stages - 1 entries that replace transfer_seconds: entry s for the hop between stages s and s + 1.
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
// inputs. INVALID_ARGUMENT in three cases:
// - Validate refuses the schedule: its error.
// - SIMULATION_COSTS: a list of costs has another length than the schedule needs, a cost is negative (but for
//   backward_seconds and feedback_transfer_seconds) or not finite, or a piece reads one that does not exist.
// - SCHEDULE_DEADLOCK: frozen pieces read each other so that ranks wait for ever.
absl::StatusOr<Simulation> Simulate(const Schedule& schedule, const SimulationCosts& costs);

// Simulate without Validate; still checks the costs. Undefined for a schedule that Validate refuses.
absl::StatusOr<Simulation> SimulateValid(const Schedule& schedule, const SimulationCosts& costs);

// Returns the duration of an action; of a frozen one, by its piece.
double SecondsOf(const Action& action, const SimulationCosts& costs);

// Returns the transfer time of the input of an action that has one (ActionIndex::Producer), by kind: the hop from the
// previous stage for F and C, the feedback for F of the first stage, the hop from the next stage for I and B.
double HopSeconds(const Action& action, const SimulationCosts& costs);

}  // namespace atl::schedule
