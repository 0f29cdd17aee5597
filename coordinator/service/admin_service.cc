#include "coordinator/service/admin_service.h"

#include <string>

#include "common/base/cut_text.h"
#include "common/base/errors.h"
#include "coordinator/service/messages.h"

namespace atl::coordinator {
namespace {

namespace admin_pb = atlpb::admin::v1;

constexpr size_t kLongestDrainReason = 1024;

template <typename Response>
std::string EncodeIslandAs(const IslandView& view) {
  Response response;
  *response.mutable_island() = IslandToProto(view);
  return response.SerializeAsString();
}

std::string EncodeMoved(const jobs::Task& task) {
  admin_pb::MoveTaskResponse moved;
  *moved.mutable_task() = TaskToProto(task);
  return moved.SerializeAsString();
}

}  // namespace

grpc::ServerUnaryReactor* AdminServiceImpl::ListIslands(grpc::CallbackServerContext* call,
                                                        const admin_pb::ListIslandsRequest*,
                                                        admin_pb::ListIslandsResponse* response) {
  return Serve(context_, call, "ListIslands", [response](Core& core) {
    for (const IslandView& view : core.ListIslands()) *response->add_islands() = IslandToProto(view);
    return absl::OkStatus();
  });
}

grpc::ServerUnaryReactor* AdminServiceImpl::DrainIsland(grpc::CallbackServerContext* call,
                                                        const admin_pb::DrainIslandRequest* request,
                                                        admin_pb::DrainIslandResponse* response) {
  return ServeChange(context_, call, {"DrainIsland", request->island_id()}, request, response,
                     [request](Core& core, const CallKey& key) -> absl::StatusOr<std::string> {
                       if (request->reason().empty()) {  // which would undrain it
                         return FieldError("reason", "FIELD_REQUIRED", "expected a value, found none");
                       }
                       return core.DrainIsland(key, request->island_id(),
                                               CutText(request->reason(), kLongestDrainReason),
                                               EncodeIslandAs<admin_pb::DrainIslandResponse>);
                     });
}

grpc::ServerUnaryReactor* AdminServiceImpl::UndrainIsland(grpc::CallbackServerContext* call,
                                                          const admin_pb::UndrainIslandRequest* request,
                                                          admin_pb::UndrainIslandResponse* response) {
  return ServeChange(context_, call, {"UndrainIsland", request->island_id()}, request, response,
                     [request](Core& core, const CallKey& key) {
                       return core.DrainIsland(key, request->island_id(), "",
                                               EncodeIslandAs<admin_pb::UndrainIslandResponse>);
                     });
}

grpc::ServerUnaryReactor* AdminServiceImpl::MoveTask(grpc::CallbackServerContext* call,
                                                     const admin_pb::MoveTaskRequest* request,
                                                     admin_pb::MoveTaskResponse* response) {
  return ServeChange(context_, call, {"MoveTask", request->task_id()}, request, response,
                     [request](Core& core, const CallKey& key) {
                       return core.MoveTask(key, request->task_id(), request->to_island_id(), EncodeMoved);
                     });
}

}  // namespace atl::coordinator
