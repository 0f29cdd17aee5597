#include "coordinator/service/model_service.h"

#include <memory>
#include <utility>
#include <vector>

#include "common/base/status_macros.h"
#include "coordinator/service/messages.h"
#include "coordinator/service/watch.h"

namespace atl::coordinator {
namespace {

namespace model_pb = atlpb::model::v1;

std::string EncodeServing(const store::Model& model) {
  model_pb::SetServingVersionResponse response;
  *response.mutable_model() = ModelToProto(model);
  return response.SerializeAsString();
}

}  // namespace

grpc::ServerUnaryReactor* ModelServiceImpl::ListModels(grpc::CallbackServerContext* call,
                                                       const model_pb::ListModelsRequest* request,
                                                       model_pb::ListModelsResponse* response) {
  return Serve(context_, call, "ListModels", [request, response](Core& core) -> absl::Status {
    ATOLL_ASSIGN_OR_RETURN(const int32_t size, PageSize(request->page_size()));
    // One more than asked for tells whether there is a next page.
    ATOLL_ASSIGN_OR_RETURN(std::vector<store::Model> models, core.ListModels(request->page_token(), size + 1));
    const bool more = models.size() > static_cast<size_t>(size);
    if (more) models.pop_back();
    for (const store::Model& model : models) *response->add_models() = ModelToProto(model);
    if (more) response->set_next_page_token(models.back().name);
    return absl::OkStatus();
  });
}

grpc::ServerUnaryReactor* ModelServiceImpl::GetModel(grpc::CallbackServerContext* call,
                                                     const model_pb::GetModelRequest* request,
                                                     model_pb::GetModelResponse* response) {
  return Serve(context_, call, "GetModel", [request, response](Core& core) -> absl::Status {
    ATOLL_ASSIGN_OR_RETURN(const store::Model model, core.GetModel(request->name()));
    *response->mutable_model() = ModelToProto(model);
    return absl::OkStatus();
  });
}

grpc::ServerUnaryReactor* ModelServiceImpl::SetServingVersion(grpc::CallbackServerContext* call,
                                                              const model_pb::SetServingVersionRequest* request,
                                                              model_pb::SetServingVersionResponse* response) {
  const absl::StatusOr<rpc::Principal> caller = CallerOf(context_, *call);
  return ServeChange(context_, call, {"SetServingVersion", request->name()}, request, response,
                     [caller, request](Core& core, const CallKey& key) -> absl::StatusOr<std::string> {
                       ATOLL_RETURN_IF_ERROR(caller.status());
                       ATOLL_RETURN_IF_ERROR(rpc::CheckModel(*caller, request->name()));
                       return core.SetServingVersion(key, request->name(), request->version(),
                                                     request->expected_generation(), EncodeServing);
                     });
}

grpc::ServerWriteReactor<model_pb::WatchModelResponse>* ModelServiceImpl::WatchModel(
    grpc::CallbackServerContext* call, const model_pb::WatchModelRequest* request) {
  const std::string name = request->name();
  const int64_t after = request->after_generation();
  Core* const core = context_.core;
  const auto begin = [core, name, after](const std::shared_ptr<StreamWriter<model_pb::WatchModelResponse>>& writer) {
    return core->WatchModel(name, after, [writer](const absl::StatusOr<store::Model>& model, bool last) {
      if (model.ok()) {
        model_pb::WatchModelResponse message;
        *message.mutable_model() = ModelToProto(*model);
        writer->Send(model->name, std::move(message));
      }
      if (last) writer->End(rpc::ToGrpc(model.status()));
    });
  };
  return ServeWatch<model_pb::WatchModelResponse>(context_, call, "WatchModel", begin,
                                                  [core](int64_t ticket) { core->CancelWatch(ticket); });
}

}  // namespace atl::coordinator
