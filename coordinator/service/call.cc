#include "coordinator/service/call.h"

#include <utility>

#include "common/base/errors.h"
#include "common/base/status_macros.h"

namespace atl::coordinator {

CallTimer::CallTimer(const ServiceContext& context, std::string_view method)
    : clock_(context.clock), registry_(context.registry), method_(method), start_(context.clock->Monotonic()) {}

void CallTimer::End(const absl::Status& status) const {
  registry_->AddCounter("atoll_coordinator_requests_total", "Calls that ended, by method.", {{"method", method_}})
      ->Increment();
  registry_
      ->AddHistogram("atoll_coordinator_request_seconds", "Time of a call, waiting included.",
                     metrics::CallSecondsBounds(), {{"method", method_}})
      ->Observe(absl::ToDoubleSeconds(clock_->Monotonic() - start_));
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

grpc::ServerUnaryReactor* Serve(const ServiceContext& context, grpc::CallbackServerContext* call,
                                std::string_view method, std::function<absl::Status(Core&)> body) {
  grpc::ServerUnaryReactor* reactor = call->DefaultReactor();
  auto timer = std::make_shared<CallTimer>(context, method);
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

absl::Status CheckIsland(const ServiceContext& context, const grpc::CallbackServerContext& call,
                         const std::string& island_id) {
  ATOLL_ASSIGN_OR_RETURN(const rpc::Principal caller, CallerOf(context, call));
  return rpc::CheckIsland(caller, island_id);
}

}  // namespace atl::coordinator
