// For tests: publishes the small model of tiny_model.h to a store. Does not depend on LibTorch.
#pragma once

#include <string>

#include "common/storage/blob_store.h"

namespace atl::router {

// Writes the networks as the publish task does and returns the SHA-256 of model_index.json. Aborts on failure.
std::string PublishTinyModel(storage::BlobStore* store, const std::string& folder_uri, bool self_conditioning = false);

}  // namespace atl::router
