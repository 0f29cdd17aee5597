#include "common/storage/arrow_status.h"

#include <string>

#include "arrow/status.h"
#include "arrow/util/io_util.h"
#include "common/base/errors.h"
#include "common/storage/local_files.h"
#include "fmt/format.h"

namespace atl::storage {

absl::Status FromArrow(const arrow::Status& status, std::string_view what) {
  if (status.ok()) return absl::OkStatus();
  // Its own text names the file again and leaves out the reason.
  if (const int error = arrow::internal::ErrnoFromStatus(status); error != 0) return FromErrno(error, what);
  const std::string message = fmt::format("{}: {}", what, status.message());
  if (status.IsOutOfMemory()) return MakeError(absl::StatusCode::kResourceExhausted, "OUT_OF_MEMORY", message);
  if (status.IsInvalid() || status.IsSerializationError() || status.IsTypeError()) {
    return MakeError(absl::StatusCode::kDataLoss, "FILE_MALFORMED", message);
  }
  return MakeError(absl::StatusCode::kUnavailable, "STORE_UNAVAILABLE", message);
}

}  // namespace atl::storage
