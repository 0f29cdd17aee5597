// Bytes that carry their own hash: 64 hex digits and a line end, then the bytes.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace atl::storage {

std::string WithHash(std::string_view bytes);

// What WithHash was given, a view into `content`. DATA_LOSS naming the file: FILE_MALFORMED for content without a hash,
// HASH_MISMATCH for one that is not its own.
absl::StatusOr<std::string_view> WithoutHash(std::string_view content, std::string_view file_name);

}  // namespace atl::storage
