// Calls to a router that `sample` and `bench sample` share.
#pragma once

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "atoll/sample/v1/sample_service.grpc.pb.h"
#include "client/calls.h"
#include "client/sample_request.h"
#include "grpcpp/support/status.h"

namespace atl::client {

// What the router serves; within flags.wait_seconds, tries again while it serves nothing (yet) or another version.
absl::StatusOr<atlpb::sample::v1::GetSamplerInfoResponse> GetSamplerInfo(
    const Session& session, const Peer<atlpb::sample::v1::SampleService>& peer, const SampleFlags& flags);

// When a refused request may come again (google.rpc.RetryInfo); zero: the router did not say.
absl::Duration RetryDelayOf(const grpc::Status& status);

}  // namespace atl::client
