// The gRPC face of the engine. Reactions never block: a call only hands its request to the engine, and the engine's
// events become messages of the stream.
#pragma once

#include <functional>

#include "atoll/sample/v1/sample_service.grpc.pb.h"
#include "common/auth/principals.h"
#include "common/base/clock.h"
#include "router/engine/engine.h"
#include "router/service/caller_quotas.h"
#include "router/service/model_follower.h"
#include "router/service/running_requests.h"
#include "router/service/sample_stream.h"

namespace atl::router {

struct SampleServiceOptions {
  // What the router has, whether it serves or not; must not block. Null: nothing is told of it.
  std::function<RouterVersions()> versions;
  // Who calls; must not block. Null: nobody has a quota.
  std::function<absl::StatusOr<rpc::Principal>(const grpc::CallbackServerContext&)> caller;
  // What callers have under way; outlives the service.
  CallerQuotas* quotas = nullptr;
};

// Thread-safe. `engine` and `clock` must outlive it and every call: shut the server down before they go.
class SampleService final : public atlpb::sample::v1::SampleService::CallbackService {
 public:
  SampleService(Engine* engine, Clock* clock, SampleServiceOptions options = {})
      : options_(options), engine_(engine), clock_(clock) {}

  // A stream holds at most one progress event, and of each of its request's images one preview or the image itself; a
  // client that does not read keeps its share of the engine's admission and nothing else, for EngineOptions'
  // max_delivery_time at the longest behind its last image.
  grpc::ServerWriteReactor<atlpb::sample::v1::SampleResponse>* Sample(
      grpc::CallbackServerContext* context, const atlpb::sample::v1::SampleRequest* request) override;
  grpc::ServerUnaryReactor* CancelSample(grpc::CallbackServerContext* context,
                                         const atlpb::sample::v1::CancelSampleRequest* request,
                                         atlpb::sample::v1::CancelSampleResponse* response) override;
  grpc::ServerUnaryReactor* GetSamplerInfo(grpc::CallbackServerContext* context,
                                           const atlpb::sample::v1::GetSamplerInfoRequest* request,
                                           atlpb::sample::v1::GetSamplerInfoResponse* response) override;

 private:
  // Hands the request to the engine, or says why not.
  absl::Status Submit(const grpc::CallbackServerContext& call, const atlpb::sample::v1::SampleRequest& request,
                      const std::shared_ptr<SampleStream>& stream);
  // Says of a router that serves nothing yet what its versions wait for.
  absl::Status WithPending(const absl::Status& status) const;

  const SampleServiceOptions options_;
  Engine* const engine_;
  Clock* const clock_;
  RunningRequests requests_;
};

}  // namespace atl::router
