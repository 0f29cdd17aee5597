// Asks a router which version it serves.
#pragma once

#include "absl/status/statusor.h"
#include "atoll/sample/v1/sample_service.grpc.pb.h"
#include "client/calls.h"
#include "client/sampling/sample_request.h"

namespace atl::client {

// Returns the version that the router serves. Retries for flags.wait_seconds while the router serves none (yet) or
// another version.
absl::StatusOr<atlpb::sample::v1::GetSamplerInfoResponse> GetSamplerInfo(
    const Session& session, const Peer<atlpb::sample::v1::SampleService>& peer, const SampleFlags& flags);

}  // namespace atl::client
