// ServingService over the registry of expert servers.
#pragma once

#include "atoll/serving/v1/serving_service.grpc.pb.h"
#include "coordinator/service/call.h"
#include "coordinator/serving/expert_registry.h"

namespace atl::coordinator {

class ServingServiceImpl : public atlpb::serving::v1::ServingService::CallbackService {
 public:
  // `registry` is owned by the context's core thread, and outlives the service.
  ServingServiceImpl(ServiceContext context, ExpertRegistry* registry) : context_(context), registry_(registry) {}

  grpc::ServerUnaryReactor* Heartbeat(grpc::CallbackServerContext* call,
                                      const atlpb::serving::v1::HeartbeatRequest* request,
                                      atlpb::serving::v1::HeartbeatResponse* response) override;
  grpc::ServerUnaryReactor* ReportRouting(grpc::CallbackServerContext* call,
                                          const atlpb::serving::v1::ReportRoutingRequest* request,
                                          atlpb::serving::v1::ReportRoutingResponse* response) override;
  grpc::ServerWriteReactor<atlpb::serving::v1::WatchServersResponse>* WatchServers(
      grpc::CallbackServerContext* call, const atlpb::serving::v1::WatchServersRequest* request) override;

 private:
  const ServiceContext context_;
  ExpertRegistry* const registry_;
};

}  // namespace atl::coordinator
