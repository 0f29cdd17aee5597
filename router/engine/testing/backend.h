// The networks of a model version for the sampling loop: the router network's posterior and the experts' velocities, on
// rows gathered from any requests. Knows neither LibTorch nor gRPC, so that experts in process, remote experts and the
// tests' fakes are alike.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "inference/rows.h"
#include "router/policy/request.h"

namespace atl::router {

struct PosteriorBatch {
  Rows rows;
  std::vector<float> posterior;  // result: [count][experts], rows add up to 1
  absl::Status status;           // of this batch alone
};

struct VelocityBatch {
  int32_t expert = 0;
  Rows rows;
  std::vector<float> velocity;  // result, shaped as rows.x
  absl::Status status;          // of this batch alone
};

// Called by one thread at a time, unless an implementation says otherwise. Both calls block until every batch has its
// result or its error.
class ModelBackend {
 public:
  virtual ~ModelBackend() = default;
  virtual const SamplerInfo& info() const = 0;
  virtual void ComputePosteriors(std::span<PosteriorBatch> batches) = 0;
  // Takes all batches of a step at once, so that experts can run side by side.
  virtual void ComputeVelocities(std::span<VelocityBatch> batches) = 0;
};

}  // namespace atl::router
