// The boundary to Arrow: turns its statuses into Atoll's.
#pragma once

#include <string_view>

#include "absl/status/status.h"

namespace arrow {
class Status;
}

namespace atl::storage {

// `what` names the operation and the file. A missing file is NOT_FOUND (BLOB_NOT_FOUND), a full disk RESOURCE_EXHAUSTED
// (DISK_FULL), malformed content DATA_LOSS (FILE_MALFORMED), other I/O UNAVAILABLE (STORE_UNAVAILABLE). For S3, a
// missing bucket is NOT_FOUND (BUCKET_NOT_FOUND), and a refused call PERMISSION_DENIED (STORE_ACCESS_DENIED), without
// the server's own text, which may quote the signed request.
absl::Status FromArrow(const arrow::Status& status, std::string_view what);

// Maps an S3 server's error code ("AccessDenied", or Arrow's "ACCESS_DENIED") or, where it is empty, its HTTP status to
// a status about `what`; `detail` is the server's text.
absl::Status FromS3(std::string_view code, int http_status, std::string_view what, std::string_view detail);

}  // namespace atl::storage

// Returns from the enclosing function when `expr`, an arrow::Status, is not OK.
#define ATOLL_RETURN_IF_ARROW_ERROR(expr, what)                                        \
  do {                                                                                 \
    if (const arrow::Status atoll_arrow_status_ = (expr); !atoll_arrow_status_.ok()) { \
      return ::atl::storage::FromArrow(atoll_arrow_status_, what);                     \
    }                                                                                  \
  } while (false)

// `ATOLL_ASSIGN_OR_RETURN_ARROW(auto x, F(), what)` for an arrow::Result.
#define ATOLL_ASSIGN_OR_RETURN_ARROW(lhs, expr, what) \
  ATOLL_ASSIGN_OR_RETURN_ARROW_IMPL_(ATOLL_ARROW_CONCAT_(atoll_result_, __LINE__), lhs, expr, what)
#define ATOLL_ARROW_CONCAT_INNER_(a, b) a##b
#define ATOLL_ARROW_CONCAT_(a, b) ATOLL_ARROW_CONCAT_INNER_(a, b)
#define ATOLL_ASSIGN_OR_RETURN_ARROW_IMPL_(result, lhs, expr, what)          \
  auto result = (expr);                                                      \
  if (!result.ok()) return ::atl::storage::FromArrow(result.status(), what); \
  lhs = std::move(result).ValueUnsafe()
