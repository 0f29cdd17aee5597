#include "coordinator/service/call.h"

#include <utility>

#include "common/base/errors.h"
#include "common/base/quoted.h"
#include "common/base/status_macros.h"
#include "coordinator/service/messages.h"
#include "fmt/format.h"
#include "fmt/ranges.h"

namespace atl::coordinator {

CallTimer::CallTimer(const ServiceContext& context, const grpc::CallbackServerContext& call, CallName name)
    : clock_(context.clock),
      registry_(context.registry),
      audit_(context.audit),
      name_(std::move(name)),
      start_(context.clock->Monotonic()) {
  if (audit_ == nullptr) return;
  subject_ = SubjectOf(context, call);
  peer_ = call.peer();
}

void CallTimer::End(const absl::Status& status) const {
  registry_->AddCounter("atoll_coordinator_requests_total", "Calls that ended, by method.", {{"method", name_.method}})
      ->Increment();
  registry_
      ->AddHistogram("atoll_coordinator_request_seconds", "Time of a call, waiting included.",
                     metrics::CallSecondsBounds(), {{"method", name_.method}})
      ->Observe(absl::ToDoubleSeconds(clock_->Monotonic() - start_));
  if (audit_ != nullptr && (name_.resource || IsRefusal(status))) {
    AuditEntry entry{.time = clock_->Now(),
                     .subject = subject_,
                     .peer = peer_,
                     .method = name_.method,
                     .resource = name_.resource.value_or(""),
                     .status = status};
    if (changed_ || (name_.resource && status.ok())) {
      audit_->Write(std::move(entry));
    } else {
      audit_->WriteRefused(std::move(entry), clock_->Monotonic());
    }
  }
  if (status.ok()) return;
  registry_
      ->AddCounter("atoll_coordinator_request_errors_total", "Calls that ended with an error, by code.",
                   {{"code", absl::StatusCodeToString(status.code())}})
      ->Increment();
}

absl::Status Busy() {
  return MakeError(absl::StatusCode::kUnavailable, "COORDINATOR_BUSY",
                   "the coordinator is overloaded or stopping; try again");
}

absl::StatusOr<CallKey> KeyOf(const ServiceContext& context, const grpc::CallbackServerContext& call,
                              std::string_view method, const std::string& request_id,
                              const google::protobuf::Message& request) {
  ATOLL_ASSIGN_OR_RETURN(const rpc::Principal caller, CallerOf(context, call));
  CallKey key{caller.subject, std::string(method), request_id, ""};
  if (!request_id.empty()) key.payload_hash = PayloadHash(request);
  key.may_change_all_jobs = caller.roles.Has(rpc::Role::kAdmin);
  key.max_open_jobs = caller.quota.open_jobs;
  return key;
}

absl::Status Decode(const absl::StatusOr<std::string>& bytes, google::protobuf::Message* response) {
  ATOLL_RETURN_IF_ERROR(bytes.status());
  if (response->ParseFromString(*bytes)) return absl::OkStatus();
  return MakeError(absl::StatusCode::kDataLoss, "STORE_CORRUPT", "a stored answer is no message");
}

grpc::ServerUnaryReactor* Serve(const ServiceContext& context, grpc::CallbackServerContext* call, CallName name,
                                std::function<absl::Status(Core&)> body) {
  grpc::ServerUnaryReactor* reactor = call->DefaultReactor();
  auto timer = std::make_shared<CallTimer>(context, *call, std::move(name));
  const bool posted = context.core_thread->Post([reactor, timer, core = context.core, body = std::move(body)] {
    const absl::Status status = body(*core);
    timer->End(status);
    reactor->Finish(rpc::ToGrpc(status));
  });
  if (!posted) {
    timer->End(Busy());
    reactor->Finish(rpc::ToGrpc(Busy()));
  }
  return reactor;
}

absl::StatusOr<rpc::Principal> CallerOf(const ServiceContext& context, const grpc::CallbackServerContext& call) {
  return rpc::CallerOf(context.guard, call);
}

std::string SubjectOf(const ServiceContext& context, const grpc::CallbackServerContext& call) {
  const absl::StatusOr<rpc::Principal> caller = CallerOf(context, call);
  return caller.ok() ? caller->subject : "";
}

absl::Status CheckIsland(const ServiceContext& context, const grpc::CallbackServerContext& call,
                         const std::string& island_id) {
  ATOLL_ASSIGN_OR_RETURN(const rpc::Principal caller, CallerOf(context, call));
  return rpc::CheckIsland(caller, island_id);
}

absl::Status CheckHolder(Core& core, const absl::StatusOr<rpc::Principal>& caller, const spec::LeaseToken& token) {
  ATOLL_RETURN_IF_ERROR(caller.status());
  ATOLL_ASSIGN_OR_RETURN(const std::string holder, core.HolderOf(token));
  if (holder.empty() || rpc::CheckIsland(*caller, holder).ok()) return absl::OkStatus();
  // Islands learn nothing of each other: the holder is not named.
  return MakeError(
      absl::StatusCode::kPermissionDenied, "ISLAND_NOT_YOURS",
      fmt::format("{} may act for the islands [{}], not for the one that holds attempt {} of task {}",
                  Quoted(caller->subject), fmt::join(caller->islands, ", "), token.attempt, token.task_id));
}

grpc::ServerUnaryReactor* ServeAttempt(const ServiceContext& context, grpc::CallbackServerContext* call, CallName name,
                                       spec::LeaseToken token,
                                       std::function<absl::Status(Core&, const spec::LeaseToken&)> body) {
  return Serve(context, call, std::move(name),
               [caller = CallerOf(context, *call), token = std::move(token),
                body = std::move(body)](Core& core) -> absl::Status {
                 ATOLL_RETURN_IF_ERROR(CheckHolder(core, caller, token));
                 return body(core, token);
               });
}

}  // namespace atl::coordinator
