#include "client/calls.h"

#include <unistd.h>

#include <array>
#include <random>

#include "absl/time/clock.h"
#include "common/base/errors.h"
#include "fmt/format.h"
#include "google/protobuf/util/json_util.h"

namespace atl::client {

absl::Status ExplainCall(const absl::Status& status, const std::string& what, absl::Duration timeout) {
  if (absl::IsUnavailable(status) && ErrorReason(status) == rpc::DefaultReason(status.code())) {
    return MakeError(status.code(), ErrorReason(status),
                     fmt::format("cannot reach {}; is it running? ({})", what, std::string(status.message())));
  }
  if (absl::IsUnimplemented(status)) {
    return MakeError(status.code(), ErrorReason(status),
                     fmt::format("expected {}, found {}", what, std::string(status.message())));
  }
  if (absl::IsDeadlineExceeded(status) && ErrorReason(status) == rpc::DefaultReason(status.code())) {
    return MakeError(status.code(), ErrorReason(status),
                     fmt::format("--timeout: expected {} to be done within {}, found it still at work", what,
                                 absl::FormatDuration(timeout)));
  }
  return status;
}

absl::Status RetryUnavailable(const std::function<absl::Status()>& attempt) {
  absl::Status status = attempt();
  for (const absl::Duration pause : {absl::Milliseconds(300), absl::Milliseconds(1200)}) {
    if (!rpc::IsRetryable(status)) break;
    absl::SleepFor(pause);
    status = attempt();
  }
  return status;
}

std::string ToJson(const google::protobuf::Message& message) {
  google::protobuf::util::JsonPrintOptions options;
  options.add_whitespace = true;
  options.always_print_primitive_fields = true;
  options.preserve_proto_field_names = true;
  std::string json;
  const auto status = google::protobuf::util::MessageToJsonString(message, &json, options);
  return status.ok() ? json : fmt::format("{{\"error\": \"{}\"}}\n", std::string(status.message()));
}

std::string NewRequestId() {
  std::random_device random;
  std::array<uint32_t, 4> words{};
  for (uint32_t& word : words) word = random();
  words[1] = (words[1] & 0xFFFF0FFF) | 0x00004000;
  words[2] = (words[2] & 0x3FFFFFFF) | 0x80000000;
  return fmt::format("{:08x}-{:04x}-{:04x}-{:04x}-{:04x}{:08x}", words[0], words[1] >> 16, words[1] & 0xFFFF,
                     words[2] >> 16, words[2] & 0xFFFF, words[3]);
}

}  // namespace atl::client
