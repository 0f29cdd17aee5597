// One action R: sums a stage's gradients over the replicas, in replica order on every replica. Each replica adds one
// part: it gathers that part from all others and sends them the sum. A replica of n thus sends and receives 2 (n - 1) /
// n of the stage's bytes, and all replicas hold the same bits.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/planner/plan.h"
#include "worker/engine/stage_compute.h"
#include "worker/transport/transport.h"

namespace atl::engine {

// Used by the engine's one thread. Nothing is posted before Begin. The transport must be aborted after an error, and
// before an unfinished Reduction is destroyed.
class Reduction {
 public:
  // `plan`, `compute` and `transport` must outlive it.
  Reduction(const planner::Plan& plan, int32_t replica, int32_t stage, StageCompute* compute,
            transport::Transport* transport)
      : plan_(plan), replica_(replica), stage_(stage), compute_(compute), transport_(transport) {}

  int32_t stage() const { return stage_; }

  // Posts this replica's share of every part, and the receives for its own part. Does not block.
  absl::Status Begin();
  // Advances as far as the received data allows; returns whether it is done. Does not block.
  absl::StatusOr<bool> Advance();
  // Continues to the end. Blocks.
  absl::Status Finish(absl::Duration timeout);

 private:
  enum class Phase : uint8_t { kGathering, kSpreading, kDone };

  bool Arrived() const;
  absl::Status Await(absl::Duration timeout);
  // Enters the next phase, after all posted operations have ended.
  absl::Status NextPhase();
  absl::Status Send(int32_t replica, std::span<const std::byte> bytes);
  absl::Status Receive(int32_t replica, std::span<std::byte> bytes);

  const planner::Plan& plan_;
  const int32_t replica_;
  const int32_t stage_;
  StageCompute* const compute_;
  transport::Transport* const transport_;
  Phase phase_ = Phase::kGathering;
  ReduceBuffers buffers_;
  std::vector<std::unique_ptr<transport::Work>> works_;  // of the phase
};

}  // namespace atl::engine
