// An order in which a whole schedule's actions can run: each after the previous one on its rank and after the actions
// whose results it reads. Shared by the validator and the simulator. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "common/schedule/action.h"

namespace atl::schedule {

// The place of an action.
struct ActionPlace {
  int32_t rank = 0;
  int32_t position = 0;
  bool operator==(const ActionPlace&) const = default;
};

// Finds actions by their work. Built from a schedule whose stages hold every micro-batch exactly once per pass (for C,
// or never), and whose ranks hold every frozen piece once (Validate checks this first).
class ActionIndex {
 public:
  explicit ActionIndex(const Schedule& schedule);

  // Returns whether the schedule has C actions.
  bool self_conditioned() const { return !self_conditioning_.empty(); }

  // Return the action that computes a forward, the gradient of a stage's inputs (I or B), a frozen piece, or a forward
  // of self-conditioning, if there are any.
  ActionPlace Forward(int32_t stage, int32_t micro_batch) const { return forward_[At(stage, micro_batch)]; }
  ActionPlace InputGradient(int32_t stage, int32_t micro_batch) const { return gradient_[At(stage, micro_batch)]; }
  ActionPlace Frozen(int32_t piece) const { return frozen_[piece]; }
  ActionPlace SelfConditioning(int32_t stage, int32_t micro_batch) const {
    return self_conditioning_[At(stage, micro_batch)];
  }

  // Returns the action whose result `action` reads: the forward (F or C) of the previous stage, or the input gradient
  // of the next stage; for the first stage's F, the last stage's C. None for the first stage's C, its F without C's,
  // the last backward, weight gradients, reductions and frozen pieces (whose reads are not part of a schedule, see
  // OrderActions).
  std::optional<ActionPlace> Producer(const Action& action) const;

 private:
  size_t At(int32_t stage, int32_t micro_batch) const {
    return static_cast<size_t>(stage) * static_cast<size_t>(micro_batches_) + static_cast<size_t>(micro_batch);
  }

  int32_t stages_;
  int32_t micro_batches_;
  std::vector<ActionPlace> forward_;
  std::vector<ActionPlace> gradient_;
  std::vector<ActionPlace> frozen_;
  std::vector<ActionPlace> self_conditioning_;
};

// By frozen piece: the pieces that it reads. Empty: none reads another.
using FrozenReads = std::vector<std::vector<int32_t>>;

struct DependencyOrder {
  std::vector<ActionPlace> order;  // every action that can run
  std::vector<int32_t> stuck;      // ranks that never run past `order`; empty if the schedule completes
  std::vector<int32_t> reached;    // per rank: the position at which it stops
};

DependencyOrder OrderActions(const Schedule& schedule, const ActionIndex& index, const FrozenReads& reads = {});

// Returns the error of a stuck order, with rank, position and reason, and the ring of ranks that wait for each other.
absl::Status DeadlockError(const Schedule& schedule, const ActionIndex& index, const FrozenReads& reads,
                           const DependencyOrder& order);

}  // namespace atl::schedule
