// One action R: a stage's gradients, summed over the replicas, in replica order on every replica. Each replica adds one
// part of them: it gathers that part from all others and sends them the sum, so that a replica of n sends and receives
// 2 (n - 1) / n of the stage's bytes, and all of them hold the same bits.
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

// Used by the engine's one thread. Nothing is posted before Begin. After an error, and before it is destroyed half
// done, the transport must have been aborted.
class Reduction {
 public:
  // `plan`, `compute` and `transport` must outlive it.
  Reduction(const planner::Plan& plan, int32_t replica, int32_t stage, StageCompute* compute,
            transport::Transport* transport)
      : plan_(plan), replica_(replica), stage_(stage), compute_(compute), transport_(transport) {}

  int32_t stage() const { return stage_; }

  // Posts this replica's share of every part, and the receives of its own part. Does not block.
  absl::Status Begin();
  // Goes as far as what has arrived allows; whether it is done. Does not block.
  absl::StatusOr<bool> Advance();
  // Goes on to the end. Blocks.
  absl::Status Finish(absl::Duration timeout);

 private:
  enum class Phase : uint8_t { kGathering, kSpreading, kDone };

  bool Arrived() const;
  absl::Status Await(absl::Duration timeout);
  // What comes after everything posted has ended.
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
