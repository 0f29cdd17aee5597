// What the engine needs of the thing that computes the extra forward of self-conditioned steps (C). Knows neither
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

// The forwards without a graph of the stages that lie on one rank, and the feedback: what the last stage's makes of a
// micro-batch goes to the first stage, whose F of the micro-batch reads it. Called by the engine's one thread. Nothing
// here is shared with the forward that trains, which has buffers and releases of its own.
//
// The engine calls, per (stage, micro-batch) of a self-conditioned iteration: EstimateInputs or HandOverEstimate of the
// stage before; EstimateForward; EstimateOutputs and later ReleaseEstimate, or HandOverEstimate. The stage before the
// first is here the last: what enters stage 0 is the feedback, and Forward of stage 0 then takes it. EstimateInputs may
// be asked for one action ahead of what reads them. Buffers stay valid and unchanged until they have been read, or
// released.
class SelfConditioningCompute {
 public:
  virtual ~SelfConditioningCompute() = default;

  // What enters `stage`: of stage 0 the feedback.
  virtual const Boundary& EstimateInputOf(int32_t stage) const = 0;
  // Memory for it, one span per tensor, for a receive to fill.
  virtual absl::StatusOr<std::vector<std::span<std::byte>>> EstimateInputs(int32_t stage, int32_t micro_batch) = 0;
  virtual absl::Status EstimateForward(int32_t stage, int32_t micro_batch) = 0;
  // What it made, to send.
  virtual absl::StatusOr<std::vector<std::span<const std::byte>>> EstimateOutputs(int32_t stage,
                                                                                  int32_t micro_batch) = 0;
  // The same within one rank: the outputs enter the next stage, those of the last one stage 0.
  virtual absl::Status HandOverEstimate(int32_t stage, int32_t micro_batch) = 0;
  // The outputs have been sent: nobody reads them any more.
  virtual void ReleaseEstimate(int32_t stage, int32_t micro_batch) = 0;
};

}  // namespace atl::engine
