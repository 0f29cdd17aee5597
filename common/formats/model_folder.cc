#include "common/formats/model_folder.h"

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "common/base/errors.h"
#include "common/base/network_id.h"
#include "fmt/format.h"

namespace atl::storage {

absl::StatusOr<std::string> FindModelFolder(const std::string& folder) {
  std::error_code error;
  const std::filesystem::path path = std::filesystem::canonical(folder, error);
  if (!error && std::filesystem::is_regular_file(path / "model_index.json", error)) return path.string();
  return MakeError(absl::StatusCode::kNotFound, "MODEL_FOLDER_NOT_FOUND",
                   fmt::format("--model-dir: expected the folder of a published model, with model_index.json in it, "
                               "found none at '{}'",
                               folder));
}

absl::StatusOr<CheckpointFile> FindNetworkFile(const ModelIndex& index, std::string_view folder_uri, int32_t expert,
                                               std::string_view name) {
  const std::string path =
      expert == kRouterNetwork ? fmt::format("router/{}", name) : fmt::format("expert_{}/{}", expert, name);
  const auto file = std::find_if(index.files.begin(), index.files.end(),
                                 [&](const CheckpointFile& entry) { return entry.name == path; });
  if (file != index.files.end()) return *file;
  return MakeError(absl::StatusCode::kDataLoss, "MODEL_FILE_MISSING",
                   fmt::format("{}/model_index.json: expected an entry for '{}', found none among {} files", folder_uri,
                               path, index.files.size()));
}

}  // namespace atl::storage
