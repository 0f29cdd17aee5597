// What the stages of a rank read of a job's frozen components in one step.
#pragma once

#include <cstdint>

#include <ATen/ATen.h>

#include "absl/status/statusor.h"
#include "worker/trainer/sample_source.h"

namespace atl::trainer {

class FrozenOutputs {
 public:
  virtual ~FrozenOutputs() = default;
  // Whether latents are learnt instead of the pixels.
  virtual bool has_latents() const = 0;
  // Of `samples`, which are [first, first + n) of the replica's batch: what is learnt, and what is added to the
  // conditioning, float32; undefined where the job has no such component.
  virtual absl::StatusOr<at::Tensor> Latents(int64_t first, const Samples& samples) const = 0;
  virtual absl::StatusOr<at::Tensor> Conditions(int64_t first, const Samples& samples) const = 0;
};

}  // namespace atl::trainer
