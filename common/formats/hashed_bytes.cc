#include "common/formats/hashed_bytes.h"

#include "common/base/errors.h"
#include "common/formats/file_list.h"
#include "common/storage/sha256.h"
#include "fmt/format.h"

namespace atl::storage {
namespace {

constexpr size_t kHashSize = 64;

}  // namespace

std::string WithHash(std::string_view bytes) {
  return fmt::format("{}\n{}", Sha256(bytes), bytes);
}

absl::StatusOr<std::string_view> WithoutHash(std::string_view content, std::string_view file_name) {
  if (content.size() <= kHashSize || content[kHashSize] != '\n' || !IsSha256Hex(content.substr(0, kHashSize))) {
    return MakeError(absl::StatusCode::kDataLoss, "FILE_MALFORMED",
                     fmt::format("{}: expected 64 hex digits in its first line, found something else", file_name));
  }
  const std::string_view bytes = content.substr(kHashSize + 1);
  if (const std::string found = Sha256(bytes); found != content.substr(0, kHashSize)) {
    return MakeError(absl::StatusCode::kDataLoss, "HASH_MISMATCH",
                     fmt::format("{}: expected SHA-256 {} of what follows its first line, found {}", file_name,
                                 content.substr(0, kHashSize), found));
  }
  return bytes;
}

}  // namespace atl::storage
