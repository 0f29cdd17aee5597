// IslandService over the core.
#pragma once

#include "atoll/island/v1/island_service.grpc.pb.h"
#include "coordinator/service/call.h"

namespace atl::coordinator {

class IslandServiceImpl : public atlpb::island::v1::IslandService::CallbackService {
 public:
  explicit IslandServiceImpl(ServiceContext context) : context_(context) {}

  grpc::ServerUnaryReactor* RegisterIsland(grpc::CallbackServerContext* call,
                                           const atlpb::island::v1::RegisterIslandRequest* request,
                                           atlpb::island::v1::RegisterIslandResponse* response) override;
  grpc::ServerUnaryReactor* Heartbeat(grpc::CallbackServerContext* call,
                                      const atlpb::island::v1::HeartbeatRequest* request,
                                      atlpb::island::v1::HeartbeatResponse* response) override;
  grpc::ServerUnaryReactor* ClaimTask(grpc::CallbackServerContext* call,
                                      const atlpb::island::v1::ClaimTaskRequest* request,
                                      atlpb::island::v1::ClaimTaskResponse* response) override;
  grpc::ServerUnaryReactor* ReportProgress(grpc::CallbackServerContext* call,
                                           const atlpb::island::v1::ReportProgressRequest* request,
                                           atlpb::island::v1::ReportProgressResponse* response) override;
  grpc::ServerUnaryReactor* CommitCheckpoint(grpc::CallbackServerContext* call,
                                             const atlpb::island::v1::CommitCheckpointRequest* request,
                                             atlpb::island::v1::CommitCheckpointResponse* response) override;
  grpc::ServerUnaryReactor* CompleteTask(grpc::CallbackServerContext* call,
                                         const atlpb::island::v1::CompleteTaskRequest* request,
                                         atlpb::island::v1::CompleteTaskResponse* response) override;
  grpc::ServerUnaryReactor* FailTask(grpc::CallbackServerContext* call,
                                     const atlpb::island::v1::FailTaskRequest* request,
                                     atlpb::island::v1::FailTaskResponse* response) override;
  grpc::ServerUnaryReactor* ReleaseTask(grpc::CallbackServerContext* call,
                                        const atlpb::island::v1::ReleaseTaskRequest* request,
                                        atlpb::island::v1::ReleaseTaskResponse* response) override;
  grpc::ServerUnaryReactor* RollbackTask(grpc::CallbackServerContext* call,
                                         const atlpb::island::v1::RollbackTaskRequest* request,
                                         atlpb::island::v1::RollbackTaskResponse* response) override;

  grpc::ServerUnaryReactor* RenewStorage(grpc::CallbackServerContext* call,
                                         const atlpb::island::v1::RenewStorageRequest* request,
                                         atlpb::island::v1::RenewStorageResponse* response) override;

 private:
  const ServiceContext context_;
};

}  // namespace atl::coordinator
