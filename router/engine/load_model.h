// Loads a published model version: model_index.json and every file that it names, each verified by its hash.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/storage/blob_store.h"
#include "router/engine/backend.h"
#include "router/engine/compute_pool.h"

namespace atl::router {

// `folder_uri` holds model_index.json, whose SHA-256 is `digest` (empty: not checked, for a folder served without a
// coordinator). Blocks; may run beside sampling. NOT_FOUND or DATA_LOSS name the file, the expected and the found;
// DATA_LOSS as well when networks do not fit the index or answer a probe with what is not finite.
absl::StatusOr<std::unique_ptr<ModelBackend>> LoadPublishedModel(storage::BlobStore* store,
                                                                 const std::string& folder_uri,
                                                                 const std::string& digest, ComputePool* pool);

}  // namespace atl::router
