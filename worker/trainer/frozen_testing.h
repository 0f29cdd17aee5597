// For tests: a small job with frozen components.
#pragma once

#include "worker/trainer/trainer_testing.h"

namespace atl::trainer {

// Turns images of 8 x 8 into latents of 2 x 4 x 4 in two components, and labels into a condition.
inline TrainerOptions LatentOptions() {
  TrainerOptions options = SmallOptions();
  options.model.depth = 4;
  options.frozen = {
      {.name = "stem", .layers = {{.kind = "convolution", .width = 6, .activation = "silu"}, {.kind = "block"}}},
      {.name = "encoder",
       .input = "stem",
       .output = "latent",
       .layers = {{.kind = "convolution", .width = 4, .stride = 2, .activation = "gelu"},
                  {.kind = "norm"},
                  {.kind = "convolution", .width = 2}}},
      {.name = "labels",
       .input = "label",
       .output = "condition",
       .layers = {{.kind = "embedding", .width = 8}, {.kind = "linear", .width = 32}}}};
  options.frozen_seed = 11;
  return options;
}

}  // namespace atl::trainer
