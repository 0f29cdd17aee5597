// A published model version as its files say: model_index.json, verified by its hash, and every file that it names,
// which is verified when it is read.
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
  storage::BlobStore* store = nullptr;  // must outlive what is loaded from it
  std::string folder_uri;
  storage::ModelIndex index;
  std::string digest;  // of the index that was read

  // `expert` may be kRouterNetwork.
  NetworkId network(int32_t expert) const {
    return {.model = index.name, .version = index.version, .digest = digest, .expert = expert};
  }
};

// `folder_uri` holds model_index.json, whose SHA-256 is `digest` (empty: not checked, for a folder served without a
// coordinator). Blocks. NOT_FOUND or DATA_LOSS name the file, the expected and the found.
absl::StatusOr<std::shared_ptr<const VersionFiles>> OpenVersion(storage::BlobStore* store,
                                                                const std::string& folder_uri,
                                                                const std::string& digest);

// What a network's weights take in memory. DATA_LOSS with reason MODEL_FILE_MISSING.
absl::StatusOr<int64_t> WeightBytes(const VersionFiles& files, int32_t expert);

}  // namespace atl::router
