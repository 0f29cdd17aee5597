// Runs one rank's part of a schedule: receives before an action, runs it, posts its sends. Knows neither LibTorch nor
// gRPC; with a fake StageCompute and the loopback transport a four-stage run is a sub-second unit test.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/planner/plan.h"
#include "common/schedule/action.h"
#include "worker/engine/activity.h"
#include "worker/engine/frozen_run.h"
#include "worker/engine/lanes.h"
#include "worker/engine/reduction.h"
#include "worker/engine/self_conditioning_compute.h"
#include "worker/engine/stage_compute.h"
#include "worker/transport/transport.h"

namespace atl::engine {

// Since the start of the iteration. From `passed_on` of the action before to `ready` the rank waited for its inputs:
// the bubble, or a slow transfer. From `ready` to `start` and from `end` to `passed_on` it posted receives and sends:
// what the engine itself costs.
struct ActionTiming {
  schedule::Action action;
  absl::Duration ready;
  absl::Duration start;
  absl::Duration end;
  absl::Duration passed_on;
};

struct EngineOptions {
  // Longest wait for one receive or send; a rank that is slower than this is lost.
  absl::Duration timeout = absl::Seconds(60);
  // What runs frozen pieces; may be null on a plan without them.
  FrozenCompute* frozen = nullptr;
  // What runs the extra forward; may be null where no iteration is self-conditioned.
  SelfConditioningCompute* self_conditioning = nullptr;
  // Whether pieces may leave their place. Not on a device, whose waits order its stream while this thread runs ahead.
  bool move_pieces = true;
  // Told of every action that computes; may be null.
  Activity* activity = nullptr;
};

// What all ranks decide alike of one iteration.
struct Iteration {
  // Whether the plan's self-conditioned schedule runs, the one with the extra forward, or the other.
  bool self_conditioned = false;
  // Whether frozen pieces run.
  bool frozen = true;
};

// What a rank runs of its line of the schedule: an I and its W side by side become one B where nobody waits for the
// input gradient, which is in the first stage and where the stage before lies on the same rank. Elsewhere they stay
// apart, so that the gradient leaves before the weight gradient is computed.
std::vector<schedule::Action> ActionsOf(const schedule::Schedule& schedule, int32_t pipeline_rank);

// Not thread-safe: one thread runs it. Owns nothing that it is given. `rank` is the island's; `transport` may be null
// when the plan has only one, and is otherwise connected with LanesOf(plan). The schedule must be one that
// schedule::Validate accepts; with replicas, a reduction that it lacks is not made up for.
class Engine {
 public:
  Engine(const planner::Plan& plan, int32_t rank, StageCompute* compute, transport::Transport* transport, Clock* clock,
         EngineOptions options);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // One iteration: every action of this rank, in order; returns when all sends and reductions of the iteration have
  // completed. Receives are posted just before first need: one action ahead, so that they overlap the action before. A
  // reduction is begun in its place and goes on between later actions.
  //
  // Frozen pieces keep their order among themselves, and so do all other actions; only what comes between what moves. A
  // piece runs in its place, or earlier: while the next action waits for inputs that, going by the last iteration of
  // the same schedule, are further away than the piece takes. Where its own inputs are missing, or a piece before it
  // has just made an action wait whose inputs are there, that action goes first, and the piece takes the next place of
  // a piece, or a gap that holds it.
  //
  // On error nothing is retried: the transport is aborted with it and the caller ends the attempt. Blocks.
  absl::Status RunIteration(Iteration iteration = {});
  // Frozen pieces alone, one after the other: before the first iteration of an attempt. Errors as above.
  absl::Status RunFrozen();

  // Of the last iteration, in order; of a failed one, the actions that ended.
  const std::vector<ActionTiming>& timings() const { return timings_; }
  // When the last iteration began, of Clock::Monotonic: what its timings count from.
  absl::Duration started() const { return started_; }

 private:
  // One of the plan's schedules, as this rank runs it.
  struct Line {
    Line(const schedule::Schedule& schedule, int32_t pipeline_rank);
    std::vector<schedule::Action> actions;  // without pieces
    std::vector<size_t> pieces_before;      // by action: the pieces of this rank that come before it in the plan
    // By action: how long after the action before it its inputs came in the last iteration of this schedule; 0 where
    // that is not known.
    std::vector<absl::Duration> gaps;
  };
  using Works = std::vector<std::unique_ptr<transport::Work>>;
  struct SendInFlight {
    schedule::Action action;  // that computed what is sent
    Works works;
  };

  absl::Status CheckRanks() const;
  // Aborts the transport with an error.
  absl::Status End(absl::Status status);
  absl::Status RunActions(const Iteration& iteration);
  // Before the action at `position`: pieces whose place has come, and others while it waits for its inputs.
  absl::Status RunPieces(size_t position);
  absl::Status RunPiece();
  // Every piece that is left.
  absl::Status RunRemainingPieces();
  bool ReceivesArrived() const;
  // Waits a little for the inputs of the next action, so that those of the next piece are looked at too.
  void AwaitReceivesBriefly();
  absl::Status RunAction(size_t position);
  absl::Status Compute(const schedule::Action& action);
  // Whether what enters the action's stage comes from the extra forward: C's inputs, and the feedback of the first
  // stage's F.
  bool ReadsEstimate(const schedule::Action& action) const;
  // Posts the receives that the action at `position` needs, if it is there and they are not posted yet.
  absl::Status PostReceives(size_t position);
  absl::Status ReceiveAll(const transport::Lane& lane, const schedule::Action& action,
                          const std::vector<int64_t>& sizes, const std::vector<std::span<std::byte>>& buffers);
  absl::Status AwaitReceives(size_t position);
  absl::Status PassOn(const schedule::Action& action);
  absl::Status SendAll(const transport::Lane& lane, const schedule::Action& action, const std::vector<int64_t>& sizes,
                       const std::vector<std::span<const std::byte>>& buffers);
  // Collects sends that have completed; with `wait`, all of them.
  absl::Status CollectSends(bool wait);
  absl::Status BeginReduction(int32_t stage);
  // What `sent` computed has been sent.
  void Release(const schedule::Action& sent);
  size_t HoldOf(int32_t stage, int32_t micro_batch) const {
    return static_cast<size_t>(stage) * schedule_.micro_batches + micro_batch;
  }
  // Lets reductions go on; with `wait`, to their end.
  absl::Status AdvanceReductions(bool wait);
  void ReleaseIfDone(int32_t stage, int32_t micro_batch);
  absl::Duration Now() const;

  const planner::Plan& plan_;
  const schedule::Schedule& schedule_;
  const int32_t rank_;     // of the island
  const int32_t replica_;  // its pipeline
  StageCompute* const compute_;
  transport::Transport* const transport_;
  Clock* const clock_;
  const EngineOptions options_;

  FrozenRun frozen_;
  Line plain_;
  Line self_conditioned_;
  Line* line_ = &plain_;  // of the iteration under way
  absl::Duration started_;
  absl::Duration idle_since_;  // the end of the last action that is no piece, since started_
  size_t next_to_post_ = 0;    // the first action whose receives are not posted
  Works receives_;             // of the action that runs next
  std::vector<SendInFlight> sends_;
  std::list<Reduction> reductions_;  // under way, in the order of the plan
  // By (stage, micro-batch): sends under way but those of C, plus one until its gradients are done.
  std::vector<int32_t> holds_;
  std::vector<ActionTiming> timings_;
};

}  // namespace atl::engine
