// Bytes that carry their own hash: 64 hex digits and a line end, then the bytes.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace atl::storage {

std::string WithHash(std::string_view bytes);

// Returns the bytes that WithHash got, a view into `content`. DATA_LOSS names the file: FILE_MALFORMED for content
// without a hash, HASH_MISMATCH for a hash that does not match.
absl::StatusOr<std::string_view> WithoutHash(std::string_view content, std::string_view file_name);

}  // namespace atl::storage
