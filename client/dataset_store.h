// The blob store of the command line, and the datasets in it.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/session.h"
#include "common/dataset/dataset.h"
#include "common/storage/blob_store.h"

namespace atl::client {

// A local one is made where there is none.
absl::StatusOr<std::unique_ptr<storage::BlobStore>> OpenBlobStore(const Session& session);
// For what only reads: NOT_FOUND, reason BLOB_STORE_NOT_FOUND, where there is none.
absl::StatusOr<std::unique_ptr<storage::BlobStore>> OpenExistingBlobStore(const Session& session);

// NOT_FOUND, reason DATASET_NOT_FOUND, lists the datasets that are there.
absl::StatusOr<dataset::DatasetManifest> ReadDataset(storage::BlobStore* store, const std::string& name);

// By name. A folder without a manifest is an import that did not end: left out.
absl::StatusOr<std::vector<dataset::DatasetManifest>> ListDatasets(storage::BlobStore* store);

}  // namespace atl::client
