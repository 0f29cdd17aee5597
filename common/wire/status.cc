#include "common/wire/status.h"

#include <algorithm>
#include <string>

#include "common/base/cut_text.h"
#include "common/base/errors.h"
#include "common/base/one_line.h"
#include "fmt/format.h"
#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"
#include "grpcpp/support/error_details.h"

namespace atl::rpc {
namespace {

constexpr char kFieldKey[] = "field";
constexpr size_t kMaxMessageBytes = 4096;

std::string Shorten(std::string message) {
  if (message.size() <= kMaxMessageBytes) return message;
  return std::string(CutText(message, kMaxMessageBytes)) + "…";
}

// REASON of "[REASON] message", else "".
std::string_view LeadingReason(std::string_view message) {
  if (!message.starts_with('[')) return "";
  const size_t end = message.find("] ");
  if (end == std::string_view::npos || end < 2 || end > 64) return "";
  const std::string_view reason = message.substr(1, end - 1);
  const bool upper_snake = std::ranges::all_of(reason, [](char c) { return (c >= 'A' && c <= 'Z') || c == '_'; });
  return upper_snake ? reason : "";
}

}  // namespace

std::string DefaultReason(absl::StatusCode code) {
  std::string name = absl::StatusCodeToString(code);
  return name.empty() ? "UNKNOWN" : name;
}

bool IsRetryable(const absl::Status& status) {
  return absl::IsUnavailable(status);
}

grpc::Status ToGrpc(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  google::rpc::ErrorInfo info;
  const std::string reason = ErrorReason(status);
  info.set_reason(reason.empty() ? DefaultReason(status.code()) : reason);
  info.set_domain(kErrorDomain);
  if (const std::string field = ErrorField(status); !field.empty()) (*info.mutable_metadata())[kFieldKey] = field;
  google::rpc::Status wire;
  wire.set_code(static_cast<int>(status.code()));
  wire.set_message(Shorten(OneLine({status.message().data(), status.message().size()})));
  wire.add_details()->PackFrom(info);
  grpc::Status result;
  grpc::SetErrorDetails(wire, &result);
  return result;
}

absl::Status FromGrpc(const grpc::Status& status) {
  if (status.ok()) return absl::OkStatus();
  const auto code = static_cast<absl::StatusCode>(status.error_code());
  google::rpc::Status wire;
  if (!status.error_details().empty() && grpc::ExtractErrorDetails(status, &wire).ok()) {
    for (const google::protobuf::Any& detail : wire.details()) {
      google::rpc::ErrorInfo info;
      if (!detail.Is<google::rpc::ErrorInfo>() || !detail.UnpackTo(&info) || info.reason().empty()) continue;
      const auto field = info.metadata().find(kFieldKey);
      const std::string path = field == info.metadata().end() ? "" : field->second;
      return MakeErrorWithField(code, info.reason(), path, status.error_message());
    }
  }
  // A server that refuses a call before its handler (guard.h) can send no details: the reason leads the message.
  const std::string message = status.error_message();
  if (const std::string_view reason = LeadingReason(message); !reason.empty()) {
    return MakeError(code, reason, message.substr(reason.size() + 3));
  }
  // For an unknown call, gRPC returns an error without a message.
  const bool wordless = code == absl::StatusCode::kUnimplemented && message.empty();
  return MakeError(code, DefaultReason(code),
                   wordless ? "a server of another kind, which does not know the call" : message);
}

}  // namespace atl::rpc
