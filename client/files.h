// Local files as whole strings, with errors that name the file.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace atl::client {

// NOT_FOUND, PERMISSION_DENIED, or UNKNOWN with the system's words. RESOURCE_EXHAUSTED above `limit` bytes. "-" reads
// standard input.
absl::StatusOr<std::string> ReadFile(const std::string& path, int64_t limit = int64_t{1} << 30);

// Writes beside the file and renames, so that a reader sees the old file or the new one. Makes its folder. A device or
// a pipe is written to.
absl::Status WriteFile(const std::string& path, std::string_view bytes);

absl::Status MakeFolders(const std::string& path);

}  // namespace atl::client
