#include "client/dataset_store.h"

#include "common/base/errors.h"
#include "common/base/status_macros.h"
#include "common/spec/spec_io.h"
#include "common/storage/existing_store.h"
#include "fmt/format.h"
#include "fmt/ranges.h"

namespace atl::client {

absl::StatusOr<std::unique_ptr<storage::BlobStore>> OpenBlobStore(const Session& session) {
  ATOLL_ASSIGN_OR_RETURN(const std::string uri, session.BlobStoreUri());
  return storage::BlobStore::Open(uri);
}

absl::StatusOr<std::unique_ptr<storage::BlobStore>> OpenExistingBlobStore(const Session& session) {
  ATOLL_ASSIGN_OR_RETURN(const std::string uri, session.BlobStoreUri());
  ATOLL_RETURN_IF_ERROR(storage::CheckStoreExists(uri));
  return storage::BlobStore::Open(uri);
}

absl::StatusOr<std::vector<dataset::DatasetManifest>> ListDatasets(storage::BlobStore* store) {
  ATOLL_ASSIGN_OR_RETURN(const auto files, store->List(store->UriOf("datasets")));
  constexpr std::string_view kManifest = "/manifest.json";
  std::vector<dataset::DatasetManifest> manifests;
  for (const storage::FileInfo& file : files) {
    if (!std::string_view(file.uri).ends_with(kManifest)) continue;
    ATOLL_ASSIGN_OR_RETURN(manifests.emplace_back(), dataset::ReadDatasetManifest(store, file.uri));
  }
  return manifests;
}

absl::StatusOr<dataset::DatasetManifest> ReadDataset(storage::BlobStore* store, const std::string& name) {
  ATOLL_RETURN_IF_ERROR(spec::ValidateName("dataset", name));
  auto manifest = dataset::ReadDatasetManifest(store, dataset::DatasetManifestUri(*store, name));
  if (!absl::IsNotFound(manifest.status())) return manifest;
  std::vector<std::string> names;
  if (const auto known = ListDatasets(store); known.ok()) {
    for (const auto& other : *known) names.push_back(other.name);
  }
  return MakeError(absl::StatusCode::kNotFound, "DATASET_NOT_FOUND",
                   fmt::format("no dataset '{}' in {}; found {}", name, store->root(),
                               names.empty() ? "none" : fmt::format("{}", fmt::join(names, ", "))));
}

}  // namespace atl::client
