// Folders with one published model each.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "common/formats/model_index.h"

namespace atl::storage {

// The canonical path of what --model-dir names; NOT_FOUND, reason MODEL_FOLDER_NOT_FOUND, where no model_index.json is
// in it.
absl::StatusOr<std::string> FindModelFolder(const std::string& folder);

// The index's entry of a network's config.json or weights; `expert` may be kRouterNetwork. DATA_LOSS with reason
// MODEL_FILE_MISSING names the file.
absl::StatusOr<CheckpointFile> FindNetworkFile(const ModelIndex& index, std::string_view folder_uri, int32_t expert,
                                               std::string_view name);

}  // namespace atl::storage
