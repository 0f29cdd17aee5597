#include "router/engine/version_files.h"

#include <algorithm>

#include "common/base/errors.h"
#include "common/base/status_macros.h"
#include "common/storage/sha256.h"
#include "fmt/format.h"

namespace atl::router {
namespace {

constexpr char kIndexFile[] = "model_index.json";

}  // namespace

absl::StatusOr<std::shared_ptr<const VersionFiles>> OpenVersion(storage::BlobStore* store,
                                                                const std::string& folder_uri,
                                                                const std::string& digest) {
  const std::string index_uri = fmt::format("{}/{}", folder_uri, kIndexFile);
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

absl::StatusOr<storage::CheckpointFile> FindFile(const VersionFiles& files, int32_t expert, const std::string& name) {
  const std::string path =
      expert == kRouterNetwork ? fmt::format("router/{}", name) : fmt::format("expert_{}/{}", expert, name);
  const auto file = std::find_if(files.index.files.begin(), files.index.files.end(),
                                 [&](const storage::CheckpointFile& entry) { return entry.name == path; });
  if (file != files.index.files.end()) return *file;
  return MakeError(absl::StatusCode::kDataLoss, "MODEL_FILE_MISSING",
                   fmt::format("{}/{}: expected an entry for '{}', found none among {} files", files.folder_uri,
                               kIndexFile, path, files.index.files.size()));
}

absl::StatusOr<int64_t> WeightBytes(const VersionFiles& files, int32_t expert) {
  ATOLL_ASSIGN_OR_RETURN(const storage::CheckpointFile file, FindFile(files, expert, storage::kWeightsFile));
  return file.bytes;
}

}  // namespace atl::router
