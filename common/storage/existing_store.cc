#include "common/storage/existing_store.h"

#include <filesystem>
#include <system_error>

#include "common/base/errors.h"
#include "fmt/format.h"

namespace atl::storage {

absl::Status CheckStoreExists(std::string_view uri) {
  constexpr std::string_view kLocal = "file://";
  if (!uri.starts_with("file:///")) return absl::OkStatus();
  std::error_code error;
  const std::filesystem::file_status status = std::filesystem::status(uri.substr(kLocal.size()), error);
  if (status.type() != std::filesystem::file_type::not_found) return absl::OkStatus();
  return MakeError(absl::StatusCode::kNotFound, "BLOB_STORE_NOT_FOUND",
                   fmt::format("expected a blob store, found no folder at {}", uri));
}

}  // namespace atl::storage
