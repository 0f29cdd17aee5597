#include "coordinator/service/admin_service.h"

#include <string>

#include "common/base/cut_text.h"
#include "common/base/errors.h"
#include "common/base/status_macros.h"
#include "coordinator/service/messages.h"

namespace atl::coordinator {
namespace {

namespace pb = atlpb::admin::v1;

constexpr size_t kLongestReason = 1024;

template <typename Request>
absl::StatusOr<CallKey> KeyOf(const ServiceContext& context, const grpc::CallbackServerContext& call,
                              std::string_view method, const Request& request) {
  ATOLL_ASSIGN_OR_RETURN(const rpc::Principal caller, CallerOf(context, call));
  CallKey key{caller.subject, std::string(method), request.request_id(), ""};
  if (!key.request_id.empty()) key.payload_hash = PayloadHash(request);
  return key;
}

template <typename Response>
absl::Status Decode(const absl::StatusOr<std::string>& bytes, Response* response) {
  ATOLL_RETURN_IF_ERROR(bytes.status());
  if (response->ParseFromString(*bytes)) return absl::OkStatus();
  return MakeError(absl::StatusCode::kDataLoss, "STORE_CORRUPT", "a stored answer is no message");
}

absl::Status RequireField(std::string_view path, const std::string& value) {
  if (!value.empty()) return absl::OkStatus();
  return FieldError(path, "FIELD_REQUIRED", "expected a value, found none");
}

template <typename Response>
std::string EncodeIslandAs(const IslandView& view) {
  Response response;
  *response.mutable_island() = IslandToProto(view);
  return response.SerializeAsString();
}

}  // namespace

grpc::ServerUnaryReactor* AdminServiceImpl::ListIslands(grpc::CallbackServerContext* call,
                                                        const pb::ListIslandsRequest*,
                                                        pb::ListIslandsResponse* response) {
  return Serve(context_, call, "ListIslands", [response](Core& core) {
    for (const IslandView& view : core.ListIslands()) *response->add_islands() = IslandToProto(view);
    return absl::OkStatus();
  });
}

grpc::ServerUnaryReactor* AdminServiceImpl::DrainIsland(grpc::CallbackServerContext* call,
                                                        const pb::DrainIslandRequest* request,
                                                        pb::DrainIslandResponse* response) {
  const absl::StatusOr<CallKey> key = KeyOf(context_, *call, "DrainIsland", *request);
  return Serve(context_, call, {"DrainIsland", request->island_id()},
               [key, request, response](Core& core) -> absl::Status {
                 ATOLL_RETURN_IF_ERROR(key.status());
                 ATOLL_RETURN_IF_ERROR(RequireField("island_id", request->island_id()));
                 ATOLL_RETURN_IF_ERROR(RequireField("reason", request->reason()));
                 return Decode(core.DrainIsland(*key, request->island_id(), CutText(request->reason(), kLongestReason),
                                                EncodeIslandAs<pb::DrainIslandResponse>),
                               response);
               });
}

grpc::ServerUnaryReactor* AdminServiceImpl::UndrainIsland(grpc::CallbackServerContext* call,
                                                          const pb::UndrainIslandRequest* request,
                                                          pb::UndrainIslandResponse* response) {
  const absl::StatusOr<CallKey> key = KeyOf(context_, *call, "UndrainIsland", *request);
  return Serve(
      context_, call, {"UndrainIsland", request->island_id()}, [key, request, response](Core& core) -> absl::Status {
        ATOLL_RETURN_IF_ERROR(key.status());
        ATOLL_RETURN_IF_ERROR(RequireField("island_id", request->island_id()));
        return Decode(core.DrainIsland(*key, request->island_id(), "", EncodeIslandAs<pb::UndrainIslandResponse>),
                      response);
      });
}

grpc::ServerUnaryReactor* AdminServiceImpl::MoveTask(grpc::CallbackServerContext* call,
                                                     const pb::MoveTaskRequest* request,
                                                     pb::MoveTaskResponse* response) {
  const absl::StatusOr<CallKey> key = KeyOf(context_, *call, "MoveTask", *request);
  return Serve(context_, call, {"MoveTask", request->task_id()}, [key, request, response](Core& core) -> absl::Status {
    ATOLL_RETURN_IF_ERROR(key.status());
    ATOLL_RETURN_IF_ERROR(RequireField("task_id", request->task_id()));
    const auto encode = [](const jobs::Task& task) {
      pb::MoveTaskResponse moved;
      *moved.mutable_task() = TaskToProto(task);
      return moved.SerializeAsString();
    };
    return Decode(core.MoveTask(*key, request->task_id(), request->to_island_id(), encode), response);
  });
}

}  // namespace atl::coordinator
