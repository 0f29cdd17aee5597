// Runs one rank's part of a schedule: receives before an action, runs it, posts its sends. Depends on neither LibTorch
// nor gRPC; with a fake StageCompute and the loopback transport a four-stage run is a sub-second unit test.
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

// Times since the start of the iteration. From `passed_on` of the previous action to `ready` the rank waited for its
// inputs: the bubble, or a slow transfer. From `ready` to `start` and from `end` to `passed_on` it posted receives and
// sends: the cost of the engine itself.
struct ActionTiming {
  schedule::Action action;
  absl::Duration ready;
  absl::Duration start;
  absl::Duration end;
  absl::Duration passed_on;
};

struct EngineOptions {
  // Longest wait for one receive or send; a slower rank counts as lost.
  absl::Duration timeout = absl::Seconds(60);
  // Runs frozen pieces; may be null if the plan has none.
  FrozenCompute* frozen = nullptr;
  // Runs the extra forward; may be null if no iteration is self-conditioned.
  SelfConditioningCompute* self_conditioning = nullptr;
  // Whether pieces may move. False on a device, because its waits order its stream while this thread runs ahead.
  bool move_pieces = true;
  // Receives every action that computes; may be null.
  Activity* activity = nullptr;
};

// Decisions about one iteration, equal on all ranks.
struct Iteration {
  // Whether to run the plan's self-conditioned schedule, which has the extra forward, or the plain one.
  bool self_conditioned = false;
  // Whether to run frozen pieces.
  bool frozen = true;
};

// Returns the actions that a rank runs for its line of the schedule. An I and its adjacent W become one B if no other
// rank waits for the input gradient: in the first stage, and if the previous stage lies on the same rank. Elsewhere
// they stay apart, so that the gradient is sent before the weight gradient is computed.
std::vector<schedule::Action> ActionsOf(const schedule::Schedule& schedule, int32_t pipeline_rank);

// Not thread-safe: one thread runs it. Owns none of its arguments. `rank` is the rank in the island. `transport` may be
// null if the plan has only one rank; otherwise it is connected with LanesOf(plan). schedule::Validate must accept the
// schedule; with replicas, the engine does not add a missing reduction.
class Engine {
 public:
  Engine(const planner::Plan& plan, int32_t rank, StageCompute* compute, transport::Transport* transport, Clock* clock,
         EngineOptions options);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // Runs one iteration: every action of this rank, in order. Returns when all sends and reductions of the iteration
  // have completed. Receives are posted just before first need: one action ahead, so that they overlap the previous
  // action. A reduction begins in its place and continues between later actions.
  //
  // Frozen pieces keep their order among themselves, and so do all other actions; only the interleaving changes. A
  // piece runs in its place, or earlier: while the next action waits for inputs that, according to the last iteration
  // of the same schedule, are further away than the piece takes. If the piece lacks its own inputs, or if an earlier
  // piece has just delayed an action whose inputs were present, the action goes first. The piece then takes the next
  // place of a piece, or a gap that holds it.
  //
  // On an error nothing is retried: the engine aborts the transport with it, and the caller ends the attempt. Blocks.
  absl::Status RunIteration(Iteration iteration = {});
  // Runs frozen pieces alone, one after the other: before the first iteration of an attempt. Errors as above.
  absl::Status RunFrozen();

  // The actions of the last iteration, in order; after a failure, the actions that ended.
  const std::vector<ActionTiming>& timings() const { return timings_; }
  // The start of the last iteration, of Clock::Monotonic; its timings count from there.
  absl::Duration started() const { return started_; }

 private:
  // One of the plan's schedules in the form that this rank runs.
  struct Line {
    Line(const schedule::Schedule& schedule, int32_t pipeline_rank);
    std::vector<schedule::Action> actions;  // without pieces
    std::vector<size_t> pieces_before;      // by action: the pieces of this rank that come before it in the plan
    // By action: the delay of its inputs after the previous action in the last iteration of this schedule; 0 if
    // unknown.
    std::vector<absl::Duration> gaps;
  };
  using Works = std::vector<std::unique_ptr<transport::Work>>;
  struct SendInFlight {
    schedule::Action action;  // the action that computed the data
    Works works;
  };

  absl::Status CheckRanks() const;
  // Aborts the transport if `status` is an error.
  absl::Status End(absl::Status status);
  absl::Status RunActions(const Iteration& iteration);
  // Before the action at `position`, runs the pieces that are due, and further pieces while the action waits for its
  // inputs.
  absl::Status RunPieces(size_t position);
  absl::Status RunPiece();
  // Runs every remaining piece.
  absl::Status RunRemainingPieces();
  bool ReceivesArrived() const;
  // Waits a little for the inputs of the next action, so that those of the next piece are checked too.
  void AwaitReceivesBriefly();
  absl::Status RunAction(size_t position);
  absl::Status Compute(const schedule::Action& action);
  // Returns whether the inputs of the action's stage come from the extra forward: the inputs of C, and the feedback of
  // the first stage's F.
  bool ReadsEstimate(const schedule::Action& action) const;
  // Posts the receives of the action at `position`, if it exists and they are not posted yet.
  absl::Status PostReceives(size_t position);
  absl::Status ReceiveAll(const transport::Lane& lane, const schedule::Action& action,
                          const std::vector<int64_t>& sizes, const std::vector<std::span<std::byte>>& buffers);
  absl::Status AwaitReceives(size_t position);
  absl::Status PassOn(const schedule::Action& action);
  absl::Status SendAll(const transport::Lane& lane, const schedule::Action& action, const std::vector<int64_t>& sizes,
                       const std::vector<std::span<const std::byte>>& buffers);
  // Collects completed sends; with `wait`, all of them.
  absl::Status CollectSends(bool wait);
  absl::Status BeginReduction(int32_t stage);
  // Releases the buffers that `sent` computed, after their send.
  void Release(const schedule::Action& sent);
  size_t HoldOf(int32_t stage, int32_t micro_batch) const {
    return static_cast<size_t>(stage) * schedule_.micro_batches + micro_batch;
  }
  // Advances the reductions; with `wait`, to their end.
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
  Line* line_ = &plain_;  // the line of the current iteration
  absl::Duration started_;
  absl::Duration idle_since_;  // the end of the last action that is no piece, since started_
  size_t next_to_post_ = 0;    // the first action whose receives are not posted
  Works receives_;             // of the action that runs next
  std::vector<SendInFlight> sends_;
  std::list<Reduction> reductions_;  // under way, in the order of the plan
  // By (stage, micro-batch): sends under way except those of C, plus one until its gradients are done.
  std::vector<int32_t> holds_;
  std::vector<ActionTiming> timings_;
};

}  // namespace atl::engine
