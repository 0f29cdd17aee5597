// The outputs of a job's frozen components, as the stages of a rank read them. RankFrozen has those of the current
// batch; the frozen cache serves every step.
#pragma once

#include <cstdint>

#include <ATen/ATen.h>

#include "absl/status/statusor.h"
#include "worker/trainer/sample_source.h"

namespace atl::trainer {

class FrozenOutputs {
 public:
  virtual ~FrozenOutputs() = default;
  // Returns whether the experts learn latents instead of pixels.
  virtual bool has_latents() const = 0;
  // Return, for `samples`, which are [first, first + n) of the replica's batch, the latents to learn and the values to
  // add to the conditioning, float32. Return an undefined at::Tensor if the job has no such component.
  virtual absl::StatusOr<at::Tensor> Latents(int64_t first, const Samples& samples) const = 0;
  virtual absl::StatusOr<at::Tensor> Conditions(int64_t first, const Samples& samples) const = 0;
};

}  // namespace atl::trainer
