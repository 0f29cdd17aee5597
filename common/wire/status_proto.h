// absl::Status <-> google.rpc.Status as a field of a message, with the same details as the status of a call (status.h).
#pragma once

#include "absl/status/status.h"
#include "google/rpc/status.pb.h"

namespace atl::rpc {

google::rpc::Status ToProto(const absl::Status& status);
absl::Status FromProto(const google::rpc::Status& proto);

}  // namespace atl::rpc
