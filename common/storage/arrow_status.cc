#include "common/storage/arrow_status.h"

#include <algorithm>
#include <charconv>
#include <initializer_list>
#include <string>

#include "absl/strings/ascii.h"
#include "arrow/status.h"
#include "arrow/util/io_util.h"
#include "common/base/errors.h"
#include "common/storage/local_files.h"
#include "fmt/format.h"

namespace atl::storage {
namespace {

// Markers of S3 errors in Arrow's messages: "…: AWS Error ACCESS_DENIED during HeadObject operation: …", and "… AWS
// Error UNKNOWN (HTTP status 503) during …".
constexpr std::string_view kAwsError = "AWS Error ";
constexpr std::string_view kHttpStatus = " (HTTP status ";

// "SlowDown" and "SLOW_DOWN" alike: "slowdown".
std::string Folded(std::string_view code) {
  std::string folded;
  for (const char c : code) {
    if (c != '_') folded.push_back(absl::ascii_tolower(static_cast<unsigned char>(c)));
  }
  return folded;
}

bool IsAny(std::string_view code, std::initializer_list<std::string_view> known) {
  return std::find(known.begin(), known.end(), code) != known.end();
}

bool IsRefusal(std::string_view code, int http_status) {
  return IsAny(code, {"accessdenied", "allaccessdisabled", "expiredtoken", "invalidaccesskeyid", "invalidclienttokenid",
                      "invalidsignature", "invalidtoken", "missingauthenticationtoken", "requesttimetooskewed",
                      "signaturedoesnotmatch", "unrecognizedclient"}) ||
         http_status == 401 || http_status == 403;
}

}  // namespace

absl::Status FromS3(std::string_view code, int http_status, std::string_view what, std::string_view detail) {
  const std::string folded = Folded(code);
  const std::string name =
      code.empty() || folded == "unknown" ? fmt::format("HTTP status {}", http_status) : std::string(code);
  if (IsRefusal(folded, http_status)) {
    return MakeError(absl::StatusCode::kPermissionDenied, "STORE_ACCESS_DENIED",
                     fmt::format("{}: the S3 server refuses: {}{}", what, name,
                                 folded == "requesttimetooskewed" ? "; this machine's clock is wrong" : ""));
  }
  if (folded == "nosuchbucket") {
    return MakeError(absl::StatusCode::kNotFound, "BUCKET_NOT_FOUND", fmt::format("{}: the bucket is not there", what));
  }
  if (IsAny(folded, {"nosuchkey", "resourcenotfound"}) || http_status == 404) {
    return MakeError(absl::StatusCode::kNotFound, "BLOB_NOT_FOUND", fmt::format("{}: it is not there", what));
  }
  return MakeError(absl::StatusCode::kUnavailable, "STORE_UNAVAILABLE", fmt::format("{}: {}: {}", what, name, detail));
}

absl::Status FromArrow(const arrow::Status& status, std::string_view what) {
  if (status.ok()) return absl::OkStatus();
  // Its own text names the file again and leaves out the reason.
  if (const int error = arrow::internal::ErrnoFromStatus(status); error != 0) return FromErrno(error, what);
  const std::string_view text = status.message();
  if (const size_t at = text.find(kAwsError); at != std::string_view::npos) {
    const std::string_view error = text.substr(at + kAwsError.size());
    const std::string_view code = error.substr(0, error.find(' '));
    int http_status = 0;
    if (const size_t number = error.find(kHttpStatus); number == code.size()) {
      const std::string_view digits = error.substr(number + kHttpStatus.size(), 3);
      std::from_chars(digits.data(), digits.data() + digits.size(), http_status);
    }
    const size_t detail = error.find(" operation: ");
    return FromS3(code, http_status, what,
                  detail == std::string_view::npos ? error : error.substr(error.find(':', detail) + 2));
  }
  const std::string message = fmt::format("{}: {}", what, text);
  if (status.IsOutOfMemory()) return MakeError(absl::StatusCode::kResourceExhausted, "OUT_OF_MEMORY", message);
  if (status.IsInvalid() || status.IsSerializationError() || status.IsTypeError()) {
    return MakeError(absl::StatusCode::kDataLoss, "FILE_MALFORMED", message);
  }
  return MakeError(absl::StatusCode::kUnavailable, "STORE_UNAVAILABLE", message);
}

}  // namespace atl::storage
