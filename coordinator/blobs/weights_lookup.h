// Reads from the blob store how much memory the networks of a published version take.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "common/storage/blob_store.h"
#include "coordinator/serving/hosting_plan.h"

namespace atl::coordinator {

// Blocks on the blob store. `folder_uri` holds model_index.json, whose SHA-256 is `digest`. NOT_FOUND and DATA_LOSS
// name the file, the expected and the found value.
absl::StatusOr<serving::VersionWeights> LookUpWeights(storage::BlobStore& blobs, const std::string& folder_uri,
                                                      const std::string& digest);

}  // namespace atl::coordinator
