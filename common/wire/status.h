// absl::Status <-> grpc::Status. An error crosses the wire as google.rpc.Status with exactly one google.rpc.ErrorInfo
// {reason, domain "atoll", metadata {"field": path}}, and comes back with the same reason and field.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "grpcpp/support/status.h"

namespace atl::rpc {

inline constexpr char kErrorDomain[] = "atoll";

// Makes the message one line and cuts it above 4 KiB: details are sent in trailers, which are small.
grpc::Status ToGrpc(const absl::Status& status);

// Converts a peer's status. Without ErrorInfo the reason is DefaultReason of its code.
absl::Status FromGrpc(const grpc::Status& status);

// Returns the reason of an error that names none, the code's own name: "UNAVAILABLE", "INVALID_ARGUMENT", ….
std::string DefaultReason(absl::StatusCode code);

// Returns whether a caller may retry the same idempotent call: UNAVAILABLE only.
bool IsRetryable(const absl::Status& status);

}  // namespace atl::rpc
