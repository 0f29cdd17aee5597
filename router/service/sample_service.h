// The gRPC face of the engine. Reactions never block: a call only hands its request to the engine, and the engine's
// events become messages of the stream.
#pragma once

#include "atoll/sample/v1/sample_service.grpc.pb.h"
#include "common/base/clock.h"
#include "router/engine/engine.h"

namespace atl::router {

// Thread-safe. `engine` and `clock` must outlive it and every call: shut the server down before they go.
class SampleService final : public atlpb::sample::v1::SampleService::CallbackService {
 public:
  SampleService(Engine* engine, Clock* clock) : engine_(engine), clock_(clock) {}

  // A stream holds at most one progress event and the images of its own request; a client that does not read keeps its
  // share of the engine's admission and nothing else, until its deadline.
  grpc::ServerWriteReactor<atlpb::sample::v1::SampleResponse>* Sample(
      grpc::CallbackServerContext* context, const atlpb::sample::v1::SampleRequest* request) override;
  grpc::ServerUnaryReactor* GetSamplerInfo(grpc::CallbackServerContext* context,
                                           const atlpb::sample::v1::GetSamplerInfoRequest* request,
                                           atlpb::sample::v1::GetSamplerInfoResponse* response) override;

 private:
  Engine* const engine_;
  Clock* const clock_;
};

}  // namespace atl::router
