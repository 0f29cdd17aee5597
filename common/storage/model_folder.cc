#include "common/storage/model_folder.h"

#include <filesystem>
#include <system_error>

#include "common/base/errors.h"
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

}  // namespace atl::storage
