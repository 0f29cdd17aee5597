// Folders with one published model each, as --model-dir names them.
#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace atl::storage {

// The folder's canonical path; NOT_FOUND, reason MODEL_FOLDER_NOT_FOUND, where no model_index.json is in it.
absl::StatusOr<std::string> FindModelFolder(const std::string& folder);

}  // namespace atl::storage
