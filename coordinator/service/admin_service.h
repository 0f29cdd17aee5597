// AdminService over the core.
#pragma once

#include "atoll/admin/v1/admin_service.grpc.pb.h"
#include "coordinator/service/call.h"

namespace atl::coordinator {

class AdminServiceImpl : public atlpb::admin::v1::AdminService::CallbackService {
 public:
  explicit AdminServiceImpl(ServiceContext context) : context_(context) {}

  grpc::ServerUnaryReactor* ListIslands(grpc::CallbackServerContext* call,
                                        const atlpb::admin::v1::ListIslandsRequest* request,
                                        atlpb::admin::v1::ListIslandsResponse* response) override;
  grpc::ServerUnaryReactor* DrainIsland(grpc::CallbackServerContext* call,
                                        const atlpb::admin::v1::DrainIslandRequest* request,
                                        atlpb::admin::v1::DrainIslandResponse* response) override;
  grpc::ServerUnaryReactor* UndrainIsland(grpc::CallbackServerContext* call,
                                          const atlpb::admin::v1::UndrainIslandRequest* request,
                                          atlpb::admin::v1::UndrainIslandResponse* response) override;
  grpc::ServerUnaryReactor* MoveTask(grpc::CallbackServerContext* call,
                                     const atlpb::admin::v1::MoveTaskRequest* request,
                                     atlpb::admin::v1::MoveTaskResponse* response) override;

 private:
  const ServiceContext context_;
};

}  // namespace atl::coordinator
