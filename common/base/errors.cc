#include "common/base/errors.h"

#include "absl/strings/cord.h"
#include "fmt/format.h"

namespace atl {
namespace {

constexpr char kReasonUrl[] = "atoll/reason";
constexpr char kFieldUrl[] = "atoll/field";

std::string Payload(const absl::Status& status, const char* url) {
  const auto payload = status.GetPayload(url);
  return payload ? std::string(*payload) : std::string();
}

}  // namespace

absl::Status MakeError(absl::StatusCode code, std::string_view reason, std::string_view message) {
  absl::Status status(code, std::string(message));
  status.SetPayload(kReasonUrl, absl::Cord(std::string(reason)));
  return status;
}

absl::Status FieldError(std::string_view path, std::string_view reason, std::string_view message) {
  return MakeErrorWithField(absl::StatusCode::kInvalidArgument, reason, path, fmt::format("{}: {}", path, message));
}

absl::Status MakeErrorWithField(absl::StatusCode code, std::string_view reason, std::string_view path,
                                std::string_view message) {
  absl::Status status = MakeError(code, reason, message);
  if (!path.empty()) status.SetPayload(kFieldUrl, absl::Cord(std::string(path)));
  return status;
}

std::string ErrorReason(const absl::Status& status) {
  return Payload(status, kReasonUrl);
}

std::string ErrorField(const absl::Status& status) {
  return Payload(status, kFieldUrl);
}

absl::Status WithContext(const absl::Status& status, std::string_view context) {
  if (status.ok()) return status;
  absl::Status result(status.code(), fmt::format("{}: {}", context, std::string(status.message())));
  status.ForEachPayload(
      [&result](absl::string_view url, const absl::Cord& payload) { result.SetPayload(url, payload); });
  return result;
}

}  // namespace atl
