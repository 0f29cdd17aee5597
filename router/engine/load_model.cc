#include "router/engine/load_model.h"

#include <algorithm>

#include "common/base/errors.h"
#include "common/base/status_macros.h"
#include "common/model/weights.h"
#include "common/storage/model_index.h"
#include "fmt/format.h"
#include "router/engine/local_backend.h"
#include "router/engine/sampler_info.h"

namespace atl::router {
namespace {

constexpr char kIndexFile[] = "model_index.json";

absl::StatusOr<std::string> ReadIndexed(storage::BlobStore* store, const std::string& folder_uri,
                                        const storage::ModelIndex& index, const std::string& name) {
  const auto file = std::find_if(index.files.begin(), index.files.end(),
                                 [&](const storage::CheckpointFile& entry) { return entry.name == name; });
  if (file == index.files.end()) {
    return MakeError(absl::StatusCode::kDataLoss, "MODEL_FILE_MISSING",
                     fmt::format("{}/{}: expected an entry for '{}', found none among {} files", folder_uri, kIndexFile,
                                 name, index.files.size()));
  }
  return store->ReadVerified(fmt::format("{}/{}", folder_uri, name), file->sha256);
}

absl::StatusOr<model::LoadedModel> LoadNetwork(storage::BlobStore* store, const std::string& folder_uri,
                                               const storage::ModelIndex& index, const std::string& part) {
  ATOLL_ASSIGN_OR_RETURN(const std::string config,
                         ReadIndexed(store, folder_uri, index, fmt::format("{}/{}", part, storage::kConfigFile)));
  ATOLL_ASSIGN_OR_RETURN(const std::string weights,
                         ReadIndexed(store, folder_uri, index, fmt::format("{}/{}", part, storage::kWeightsFile)));
  return model::LoadModel(config, weights, fmt::format("{}/{}", folder_uri, part));
}

}  // namespace

absl::StatusOr<std::unique_ptr<ModelBackend>> LoadPublishedModel(storage::BlobStore* store,
                                                                 const std::string& folder_uri,
                                                                 const std::string& digest, ComputePool* pool) {
  const std::string index_uri = fmt::format("{}/{}", folder_uri, kIndexFile);
  ATOLL_ASSIGN_OR_RETURN(const std::string json,
                         digest.empty() ? store->Read(index_uri) : store->ReadVerified(index_uri, digest));
  ATOLL_ASSIGN_OR_RETURN(const storage::ModelIndex index, storage::ParseModelIndex(json, index_uri));
  if (index.experts < 1) {
    return MakeError(absl::StatusCode::kDataLoss, "MODEL_MISMATCH",
                     fmt::format("{}: expected at least one expert, found {}", index_uri, index.experts));
  }
  Networks networks;
  for (int32_t expert = 0; expert < index.experts; ++expert) {
    ATOLL_ASSIGN_OR_RETURN(model::LoadedModel network,
                           LoadNetwork(store, folder_uri, index, fmt::format("expert_{}", expert)));
    networks.experts.push_back(std::move(network));
  }
  ATOLL_ASSIGN_OR_RETURN(networks.router, LoadNetwork(store, folder_uri, index, "router"));
  return MakeLocalBackend(InfoOf(index), std::move(networks), pool);
}

}  // namespace atl::router
