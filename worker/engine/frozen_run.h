// One rank's frozen pieces in one iteration: which come next, whether their inputs have arrived, and their sends. The
// engine decides when they run.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/planner/frozen_flow.h"
#include "common/planner/plan.h"
#include "worker/engine/frozen_compute.h"
#include "worker/transport/transport.h"

namespace atl::engine {

// Used by the engine's one thread. The pieces of a rank run in the order of the plan, so that the messages of a lane
// have the same order on both sides at any timing. After an error the transport must be aborted before Clear.
class FrozenRun {
 public:
  // `rank` is the rank in the island. `compute` may be null if the plan has no pieces; `transport` may be null if there
  // is one rank. All arguments must outlive it.
  FrozenRun(const planner::Plan& plan, int32_t rank, FrozenCompute* compute, transport::Transport* transport,
            Clock* clock, absl::Duration timeout);

  // Starts an iteration; with `run` false, one without pieces. Posts every receive at once: their buffers are needed
  // until the end in any case, and on a device only the first of a lane occupies it.
  absl::Status Begin(bool run);
  // Returns how many pieces of this rank have run in this iteration.
  size_t done() const { return next_; }
  // Returns the next piece, if any is left.
  std::optional<int32_t> next() const;
  // Returns whether the inputs of the next piece have arrived. Does not block.
  absl::StatusOr<bool> NextReady();
  // Blocks until the inputs of the next piece have arrived.
  absl::Status AwaitNext();
  // Returns how long the next piece took when it last ran; infinite before its first run.
  absl::Duration NextDuration() const;
  // Runs the next piece, which must be ready, and posts its sends.
  absl::Status RunNext();
  // Forgets sends that have completed.
  absl::Status CollectSends() { return CollectSends(/*wait=*/false); }
  // Waits for all sends of this rank, and for all receives of its stages.
  absl::Status End();
  // Drops the pieces and transfers under way.
  void Clear();

 private:
  struct Transfer {
    int32_t piece = 0;
    std::unique_ptr<transport::Work> work;
  };

  bool Runs(int32_t piece) const { return plan_.frozen[static_cast<size_t>(piece)].rank == pipeline_rank_; }
  bool Needs(int32_t piece) const;
  absl::Status PostReceives();
  absl::Status Send(int32_t piece);
  absl::Status CollectSends(bool wait);
  // Removes one reader or send of the piece's output.
  void Drop(int32_t piece);

  const planner::Plan& plan_;
  const planner::FrozenFlow flow_;
  const int32_t pipeline_rank_;
  const int32_t first_rank_;  // the island's rank of this replica's rank 0
  FrozenCompute* const compute_;
  transport::Transport* const transport_;
  Clock* const clock_;
  const absl::Duration timeout_;
  std::vector<int32_t> pieces_;            // of this rank, in order
  std::vector<absl::Duration> durations_;  // by piece

  bool running_ = false;
  size_t next_ = 0;                                         // in pieces_
  std::vector<std::unique_ptr<transport::Work>> receives_;  // by piece; null where none is under way
  std::list<Transfer> sends_;
  std::vector<int32_t> readers_;  // by piece: pieces of this rank and sends that still read it
};

// The frozen lanes of a plan, one per directed pair of ranks that has messages, in a fixed order.
std::vector<transport::Lane> FrozenLanesOf(const planner::Plan& plan);

}  // namespace atl::engine
