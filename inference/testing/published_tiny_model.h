// For tests: the small model of tiny_model.h in a store. Knows no LibTorch.
#pragma once

#include <string>

#include "common/storage/blob_store.h"

namespace atl::router {

// Writes the networks as the publish task does and returns the SHA-256 of model_index.json. Aborts when it cannot.
std::string PublishTinyModel(storage::BlobStore* store, const std::string& folder_uri, bool self_conditioning = false);

}  // namespace atl::router
