// For tests: a small model with random weights.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/model/weights.h"
#include "common/storage/blob_store.h"

namespace atl::router {

inline constexpr int32_t kTinyExperts = 3;

// The networks of one version.
struct Networks {
  std::vector<model::LoadedModel> experts;
  model::LoadedModel router;
};

// Returns a network with non-zero answers; a fresh one answers zero because of adaLN-Zero. `outputs` as in
// model::DitConfig.
model::LoadedModel TinyNetwork(int64_t outputs, uint64_t seed, bool self_conditioning = false);

// Returns the same networks at every call.
Networks TinyNetworks(bool self_conditioning = false);

// Writes `networks`, of any size, as version "v1" of model "tiny": four classes, images of the router network's shape
// (4x4 grey ones for TinyNetworks). Returns the SHA-256 of model_index.json. Aborts on failure.
std::string PublishNetworks(storage::BlobStore* store, const std::string& folder_uri, const Networks& networks,
                            bool self_conditioning = false);

}  // namespace atl::router
