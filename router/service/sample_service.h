// The gRPC interface of the engine. Reactions never block: a call only passes its request to the engine, and the
// engine's events become messages of the stream.
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
  // Returns the router's versions, whether or not they serve; must not block. Null: they are not reported.
  std::function<RouterVersions()> versions;
  // Returns the caller; must not block. Null: no quotas apply.
  std::function<absl::StatusOr<rpc::Principal>(const grpc::CallbackServerContext&)> caller;
  // Counts the running images of each caller; outlives the service.
  CallerQuotas* quotas = nullptr;
};

// Thread-safe. `engine` and `clock` must outlive it and every call, so shut the server down first.
class SampleService final : public atlpb::sample::v1::SampleService::CallbackService {
 public:
  SampleService(Engine* engine, Clock* clock, SampleServiceOptions options = {})
      : options_(options), engine_(engine), clock_(clock) {}

  // A stream holds at most one progress event and, for each image of its request, one preview or the image itself. A
  // client that does not read keeps only its share of the engine's admission, until at most EngineOptions'
  // max_delivery_time after its last image.
  grpc::ServerWriteReactor<atlpb::sample::v1::SampleResponse>* Sample(
      grpc::CallbackServerContext* context, const atlpb::sample::v1::SampleRequest* request) override;
  grpc::ServerUnaryReactor* CancelSample(grpc::CallbackServerContext* context,
                                         const atlpb::sample::v1::CancelSampleRequest* request,
                                         atlpb::sample::v1::CancelSampleResponse* response) override;
  grpc::ServerUnaryReactor* GetSamplerInfo(grpc::CallbackServerContext* context,
                                           const atlpb::sample::v1::GetSamplerInfoRequest* request,
                                           atlpb::sample::v1::GetSamplerInfoResponse* response) override;

 private:
  // Submits the request to the engine, or returns the reason for rejecting it.
  absl::Status Submit(const grpc::CallbackServerContext& call, const atlpb::sample::v1::SampleRequest& request,
                      const std::shared_ptr<SampleStream>& stream);
  // Adds to the error of a router that serves nothing yet what its versions wait for.
  absl::Status WithPending(const absl::Status& status) const;

  const SampleServiceOptions options_;
  Engine* const engine_;
  Clock* const clock_;
  RunningRequests requests_;
};

}  // namespace atl::router
