// The files of a published model version: model_index.json, verified by its hash, and every file that it names. Each of
// these is verified when it is read.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/base/network_id.h"
#include "common/formats/model_index.h"
#include "common/storage/blob_store.h"

namespace atl::router {

struct VersionFiles {
  storage::BlobStore* store = nullptr;  // must outlive all networks loaded from it
  std::string folder_uri;
  storage::ModelIndex index;
  std::string digest;  // of the index that was read

  // `expert` may be kRouterNetwork.
  NetworkId network(int32_t expert) const {
    return {.model = index.name, .version = index.version, .digest = digest, .expert = expert};
  }
};

// Opens the version in `folder_uri`, which holds model_index.json with the SHA-256 `digest`. An empty digest is not
// checked (for a folder served without a coordinator). Blocks. NOT_FOUND or DATA_LOSS name the file, the expected and
// the found value.
absl::StatusOr<std::shared_ptr<const VersionFiles>> OpenVersion(storage::BlobStore* store,
                                                                const std::string& folder_uri,
                                                                const std::string& digest);

// Returns how much memory a network's weights take. DATA_LOSS with reason MODEL_FILE_MISSING.
absl::StatusOr<int64_t> WeightBytes(const VersionFiles& files, int32_t expert);

}  // namespace atl::router
