#include "inference/version_files.h"

#include "common/base/errors.h"
#include "common/base/status_macros.h"
#include "common/formats/model_folder.h"
#include "common/storage/sha256.h"
#include "fmt/format.h"

namespace atl::router {

absl::StatusOr<std::shared_ptr<const VersionFiles>> OpenVersion(storage::BlobStore* store,
                                                                const std::string& folder_uri,
                                                                const std::string& digest) {
  const std::string index_uri = folder_uri + "/model_index.json";
  ATOLL_ASSIGN_OR_RETURN(const std::string json,
                         digest.empty() ? store->Read(index_uri) : store->ReadVerified(index_uri, digest));
  auto files = std::make_shared<VersionFiles>();
  files->store = store;
  files->folder_uri = folder_uri;
  ATOLL_ASSIGN_OR_RETURN(files->index, storage::ParseModelIndex(json, index_uri));
  const storage::ModelIndex& index = files->index;
  if (index.experts < 1) {
    return MakeError(absl::StatusCode::kDataLoss, "MODEL_MISMATCH",
                     fmt::format("{}: expected at least one expert, found {}", index_uri, index.experts));
  }
  files->digest = storage::Sha256(json);
  return files;
}

absl::StatusOr<int64_t> WeightBytes(const VersionFiles& files, int32_t expert) {
  ATOLL_ASSIGN_OR_RETURN(const storage::CheckpointFile file,
                         storage::FindNetworkFile(files.index, files.folder_uri, expert, storage::kWeightsFile));
  return file.bytes;
}

}  // namespace atl::router
