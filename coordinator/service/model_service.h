// ModelService over the core.
#pragma once

#include "atoll/model/v1/model_service.grpc.pb.h"
#include "coordinator/service/call.h"

namespace atl::coordinator {

class ModelServiceImpl : public atlpb::model::v1::ModelService::CallbackService {
 public:
  explicit ModelServiceImpl(ServiceContext context) : context_(context) {}

  grpc::ServerUnaryReactor* ListModels(grpc::CallbackServerContext* call,
                                       const atlpb::model::v1::ListModelsRequest* request,
                                       atlpb::model::v1::ListModelsResponse* response) override;
  grpc::ServerUnaryReactor* GetModel(grpc::CallbackServerContext* call,
                                     const atlpb::model::v1::GetModelRequest* request,
                                     atlpb::model::v1::GetModelResponse* response) override;
  grpc::ServerUnaryReactor* SetServingVersion(grpc::CallbackServerContext* call,
                                              const atlpb::model::v1::SetServingVersionRequest* request,
                                              atlpb::model::v1::SetServingVersionResponse* response) override;
  grpc::ServerWriteReactor<atlpb::model::v1::WatchModelResponse>* WatchModel(
      grpc::CallbackServerContext* call, const atlpb::model::v1::WatchModelRequest* request) override;

 private:
  const ServiceContext context_;
};

}  // namespace atl::coordinator
