#include "common/storage/arrow_status.h"

#include <cerrno>
#include <string>

#include "arrow/status.h"
#include "arrow/util/io_util.h"
#include "common/base/errors.h"
#include "fmt/format.h"

namespace atl::storage {

absl::Status FromArrow(const arrow::Status& status, std::string_view what) {
  if (status.ok()) return absl::OkStatus();
  const std::string message = fmt::format("{}: {}", what, status.message());
  switch (arrow::internal::ErrnoFromStatus(status)) {
    case ENOENT:
    case ENOTDIR:
      return MakeError(absl::StatusCode::kNotFound, "BLOB_NOT_FOUND", message);
    case ENOSPC:
    case EDQUOT:
      return MakeError(absl::StatusCode::kResourceExhausted, "DISK_FULL", message);
    case EACCES:
    case EPERM:
    case EROFS:
      return MakeError(absl::StatusCode::kPermissionDenied, "STORE_ACCESS_DENIED", message);
    default:
      break;
  }
  if (status.IsOutOfMemory()) return MakeError(absl::StatusCode::kResourceExhausted, "OUT_OF_MEMORY", message);
  if (status.IsInvalid() || status.IsSerializationError() || status.IsTypeError()) {
    return MakeError(absl::StatusCode::kDataLoss, "FILE_MALFORMED", message);
  }
  return MakeError(absl::StatusCode::kUnavailable, "STORE_UNAVAILABLE", message);
}

}  // namespace atl::storage
