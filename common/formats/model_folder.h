// Folders with one published model each.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "common/formats/model_index.h"

namespace atl::storage {

// Returns the canonical path of --model-dir's folder. NOT_FOUND, reason MODEL_FOLDER_NOT_FOUND, if it has no
// model_index.json.
absl::StatusOr<std::string> FindModelFolder(const std::string& folder);

// Returns the index's entry of a network's config.json or weights; `expert` may be kRouterNetwork. DATA_LOSS with
// reason MODEL_FILE_MISSING names the file.
absl::StatusOr<CheckpointFile> FindNetworkFile(const ModelIndex& index, std::string_view folder_uri, int32_t expert,
                                               std::string_view name);

}  // namespace atl::storage
