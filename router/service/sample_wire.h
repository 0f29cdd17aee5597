// Conversion between sampling messages and the sampler's own types. Pure.
#pragma once

#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "atoll/sample/v1/sample_service.pb.h"
#include "grpcpp/support/status.h"
#include "router/engine/flight.h"
#include "router/policy/request.h"
#include "router/service/model_follower.h"

namespace atl::router {

// The names of SampleRequest.Mode in REST and on the command line, by number.
inline constexpr std::string_view kModeNames[] = {"default", "topk", "threshold", "full", "oracle", "nucleus", "top1"};

// INVALID_ARGUMENT with the field for more images or seeds than the limits allow (checked before anything is copied),
// an unknown mode, solver or format, and a field that belongs to another mode than the requested one.
absl::StatusOr<SampleRequest> FromProto(const atlpb::sample::v1::SampleRequest& proto, const SamplerLimits& limits);

atlpb::sample::v1::GetSamplerInfoResponse ToProto(const SamplerInfo& info, const SamplerLimits& limits);
// Adds the router's versions of the response's model.
void AddVersions(const RouterVersions& versions, atlpb::sample::v1::GetSamplerInfoResponse* response);
atlpb::sample::v1::Image ToProto(SampledImage image);
atlpb::sample::v1::Done ToProto(const SampleReport& report);

// Like rpc::ToGrpc, with google.rpc.RetryInfo beside the ErrorInfo when the status carries a delay.
grpc::Status ToGrpcWithRetry(const absl::Status& status);

}  // namespace atl::router
