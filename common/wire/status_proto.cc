#include "common/wire/status_proto.h"

#include "common/wire/status.h"
#include "grpcpp/support/error_details.h"

namespace atl::rpc {

google::rpc::Status ToProto(const absl::Status& status) {
  google::rpc::Status proto;
  if (!status.ok()) (void)grpc::ExtractErrorDetails(ToGrpc(status), &proto);
  return proto;
}

absl::Status FromProto(const google::rpc::Status& proto) {
  // gRPC takes only codes that it knows.
  if (proto.code() < 0 || proto.code() > static_cast<int>(absl::StatusCode::kUnauthenticated)) {
    return absl::UnknownError(proto.message());
  }
  if (proto.code() == 0) return absl::OkStatus();
  grpc::Status status;
  if (!grpc::SetErrorDetails(proto, &status).ok()) return absl::UnknownError(proto.message());
  return FromGrpc(status);
}

}  // namespace atl::rpc
