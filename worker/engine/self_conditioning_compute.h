// The interface through which the engine computes the extra forward of self-conditioned steps (C). Depends on neither
// LibTorch nor gRPC.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/engine/stage_compute.h"

namespace atl::engine {

// Runs the forwards without a graph of the stages on one rank, and passes the feedback: the last stage's result for a
// micro-batch goes to the first stage, whose F of the micro-batch reads it. Called by the engine's one thread. Shares
// no state with the forward that trains, which has its own buffers and releases.
//
// Calls per (stage, micro-batch) of a self-conditioned iteration: EstimateInputs, or HandOverEstimate of the previous
// stage; EstimateForward; EstimateOutputs and later ReleaseEstimate, or HandOverEstimate. The first stage's predecessor
// is here the last stage: the input of stage 0 is the feedback, and Forward of stage 0 then takes it. The engine may
// call EstimateInputs one action before their reader. Buffers stay valid and unchanged until they have been read or
// released.
class SelfConditioningCompute {
 public:
  virtual ~SelfConditioningCompute() = default;

  // Returns the tensors that enter `stage`; for stage 0, the feedback.
  virtual const Boundary& EstimateInputOf(int32_t stage) const = 0;
  // Returns memory for them, one span per tensor, for a receive to fill.
  virtual absl::StatusOr<std::vector<std::span<std::byte>>> EstimateInputs(int32_t stage, int32_t micro_batch) = 0;
  virtual absl::Status EstimateForward(int32_t stage, int32_t micro_batch) = 0;
  // Returns the outputs of EstimateForward, to send.
  virtual absl::StatusOr<std::vector<std::span<const std::byte>>> EstimateOutputs(int32_t stage,
                                                                                  int32_t micro_batch) = 0;
  // Passes the outputs on within one rank: to the next stage, or from the last stage to stage 0.
  virtual absl::Status HandOverEstimate(int32_t stage, int32_t micro_batch) = 0;
  // The outputs have been sent and are not read any more.
  virtual void ReleaseEstimate(int32_t stage, int32_t micro_batch) = 0;
};

}  // namespace atl::engine
