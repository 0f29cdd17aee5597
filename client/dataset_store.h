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

// Opens the blob store; creates a local one if it does not exist.
absl::StatusOr<std::unique_ptr<storage::BlobStore>> OpenBlobStore(const Session& session);
// Opens the blob store for commands that only read. NOT_FOUND (BLOB_STORE_NOT_FOUND) if it does not exist.
absl::StatusOr<std::unique_ptr<storage::BlobStore>> OpenExistingBlobStore(const Session& session);

// Returns the manifest of `name`. NOT_FOUND (DATASET_NOT_FOUND) lists the datasets that exist.
absl::StatusOr<dataset::DatasetManifest> ReadDataset(storage::BlobStore* store, const std::string& name);

// Returns the datasets, sorted by name. Skips folders without a manifest, which are unfinished imports.
absl::StatusOr<std::vector<dataset::DatasetManifest>> ListDatasets(storage::BlobStore* store);

}  // namespace atl::client
