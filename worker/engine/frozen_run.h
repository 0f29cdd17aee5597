// One rank's frozen pieces in one iteration: which come next, whether what they read has arrived, and what they send.
// When they run is the engine's decision.
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
// have one order on both sides, whenever they run. After an error the transport must be aborted before Clear.
class FrozenRun {
 public:
  // `rank` is the island's. `compute` may be null on a plan without pieces; `transport` where there is one rank.
  // Everything must outlive it.
  FrozenRun(const planner::Plan& plan, int32_t rank, FrozenCompute* compute, transport::Transport* transport,
            Clock* clock, absl::Duration timeout);

  // Starts an iteration, or without pieces (`run` false) one that has none. Posts every receive at once: their buffers
  // are needed until the end in any case, and on a device only the first of a lane occupies it.
  absl::Status Begin(bool run);
  // How many pieces of this rank have run in this iteration.
  size_t done() const { return next_; }
  // The piece that comes next, if any is left.
  std::optional<int32_t> next() const;
  // Whether what the next piece reads is there. Does not block.
  absl::StatusOr<bool> NextReady();
  // Blocks until it is.
  absl::Status AwaitNext();
  // How long the next piece took when it last ran; infinite before it ever has.
  absl::Duration NextDuration() const;
  // Runs the next piece, which must be ready, and posts what it sends.
  absl::Status RunNext();
  // Forgets sends that have completed.
  absl::Status CollectSends() { return CollectSends(/*wait=*/false); }
  // Waits for everything that this rank still sends, or receives for its stages.
  absl::Status End();
  // Drops what is under way.
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
  // One reader or send of the piece's output less.
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
