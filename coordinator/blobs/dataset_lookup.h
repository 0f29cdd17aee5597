// What a job needs to know of its dataset, read from the blob store.
#pragma once

#include <string_view>

#include "absl/status/statusor.h"
#include "common/storage/blob_store.h"
#include "coordinator/core/core.h"

namespace atl::coordinator {

// Blocks on the blob store. NOT_FOUND (DATASET_UNKNOWN) names the dataset and those that there are.
absl::StatusOr<DatasetInfo> LookUpDataset(storage::BlobStore& blobs, std::string_view name);

}  // namespace atl::coordinator
