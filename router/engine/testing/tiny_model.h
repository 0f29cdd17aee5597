// For tests: a small model with random weights.
#pragma once

#include <cstdint>

#include "common/model/weights.h"
#include "router/engine/local_backend.h"

namespace atl::router {

inline constexpr int32_t kTinyExperts = 3;

// Model "tiny", version "v1": four classes of 4x4 grey images.
SamplerInfo TinyInfo(bool self_conditioning = false);

// A network that answers something: fresh ones answer zero, by adaLN-Zero. `outputs` as in model::DitConfig.
model::LoadedModel TinyNetwork(int64_t outputs, uint64_t seed, bool self_conditioning = false);

// The same at every call.
Networks TinyNetworks(bool self_conditioning = false);

}  // namespace atl::router
