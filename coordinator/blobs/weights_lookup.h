// What a published version's networks take in memory, read from the blob store.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "common/storage/blob_store.h"
#include "coordinator/serving/hosting_plan.h"

namespace atl::coordinator {

// Blocks on the blob store. `folder_uri` holds model_index.json, whose SHA-256 is `digest`. NOT_FOUND or DATA_LOSS name
// the file, the expected and the found.
absl::StatusOr<serving::VersionWeights> LookUpWeights(storage::BlobStore& blobs, const std::string& folder_uri,
                                                      const std::string& digest);

}  // namespace atl::coordinator
