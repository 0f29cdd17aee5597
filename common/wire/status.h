// absl::Status <-> grpc::Status. An error crosses the wire as google.rpc.Status with exactly one google.rpc.ErrorInfo
// {reason, domain "atoll", metadata {"field": path}}, and comes back with the same reason and field.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "grpcpp/support/status.h"

namespace atl::rpc {

inline constexpr char kErrorDomain[] = "atoll";

// Makes a message one line, and cuts it above 4 KiB: details ride in trailers, which are small.
grpc::Status ToGrpc(const absl::Status& status);

// A peer that sent no ErrorInfo gives a status whose reason is DefaultReason of its code.
absl::Status FromGrpc(const grpc::Status& status);

// The reason of an error that names none: "UNAVAILABLE", "INVALID_ARGUMENT", …: the code's own name.
std::string DefaultReason(absl::StatusCode code);

// Whether a caller may try the same idempotent call again: UNAVAILABLE only.
bool IsRetryable(const absl::Status& status);

}  // namespace atl::rpc
