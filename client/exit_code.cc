#include "client/exit_code.h"

#include "common/base/errors.h"

namespace atl::client {

ExitCode ExitCodeOf(const absl::Status& status) {
  const std::string reason = ErrorReason(status);
  if (reason == "USAGE") return kExitUsage;
  if (reason == "JOB_FAILED") return kExitJobFailed;
  if (reason == "INTERRUPTED") return kExitInterrupted;
  if (reason == "STORE_FULL") return kExitResourceExhausted;  // UNAVAILABLE, so clients retry, but the disk is full
  switch (status.code()) {
    case absl::StatusCode::kOk:
      return kExitOk;
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kOutOfRange:
      return kExitInvalidArgument;
    case absl::StatusCode::kNotFound:
      return kExitNotFound;
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kAborted:
    case absl::StatusCode::kAlreadyExists:
      return kExitPrecondition;
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kDeadlineExceeded:
      return kExitUnavailable;
    case absl::StatusCode::kResourceExhausted:
      return kExitResourceExhausted;
    case absl::StatusCode::kDataLoss:
      return kExitDataLoss;
    case absl::StatusCode::kPermissionDenied:
    case absl::StatusCode::kUnauthenticated:
      return kExitPermission;
    default:
      return kExitOther;
  }
}

const char* ExitCodeHelp() {
  return R"(Exit codes:
  0  done                           6  nobody answers, or not in time
  1  any other error                7  too much asked at once, or a full disk
  2  wrong command line             8  stored data is damaged
  3  invalid input (file or field)  9  not allowed
  4  not found                     10  the job failed or was cancelled
  5  wrong state, or conflict     130  interrupted
)";
}

}  // namespace atl::client
