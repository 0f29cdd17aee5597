// Local files as whole strings, with errors that name the file.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace atl {

// Returns the file's bytes; "-" reads standard input. NOT_FOUND (FILE_NOT_FOUND), RESOURCE_EXHAUSTED (FILE_TOO_LARGE)
// above `limit` bytes, else the system's error (FILE_ERROR). If permissions are missing, the message names the file's
// owner and this process's user.
absl::StatusOr<std::string> ReadFile(const std::string& path, int64_t limit = int64_t{1} << 30);

// Writes a temporary file beside the file and renames it, so that a reader sees the old file or the new one. Makes the
// folder. Writes directly to a device, a pipe or a link. DISK_FULL, else errors as of ReadFile.
absl::Status WriteFile(const std::string& path, std::string_view bytes);

absl::Status MakeFolders(const std::string& path);

}  // namespace atl
