// Format numbers and lists of files with their hashes, shared by checkpoint manifest and model index.
#pragma once

#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "common/formats/checkpoint.h"
#include "common/storage/json_reader.h"
#include "nlohmann/json.hpp"

namespace atl::storage {

nlohmann::ordered_json FilesToJson(const std::vector<CheckpointFile>& files);

// Names must be relative, inside the folder, and unique; hashes are 64 lower-case hex digits.
void ReadFiles(JsonReader* reader, const char* field, std::vector<CheckpointFile>* out);

bool IsSha256Hex(std::string_view text);

// FAILED_PRECONDITION (FORMAT_UNSUPPORTED) unless `found` is a format from 1 to `supported`.
absl::Status CheckFormat(int found, int supported, std::string_view file_name);

}  // namespace atl::storage
