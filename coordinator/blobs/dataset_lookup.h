// Reads from the blob store the facts about a dataset that a job needs.
#pragma once

#include <string_view>

#include "absl/status/statusor.h"
#include "common/storage/blob_store.h"
#include "coordinator/core/core.h"

namespace atl::coordinator {

// Blocks on the blob store. NOT_FOUND (DATASET_UNKNOWN) names the dataset and the existing ones.
absl::StatusOr<DatasetInfo> LookUpDataset(storage::BlobStore& blobs, std::string_view name);

}  // namespace atl::coordinator
