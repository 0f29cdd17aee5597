// How calls reach the core: one function per unary call, run on the core's thread and answered from there, so that no
// gRPC thread ever waits.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "common/metrics/metrics.h"
#include "common/rpc/guard.h"
#include "common/rpc/status.h"
#include "coordinator/service/core.h"
#include "coordinator/service/executor.h"
#include "grpcpp/server_context.h"
#include "grpcpp/support/server_callback.h"

namespace atl::coordinator {

// What every service shares. All of it outlives the services.
struct ServiceContext {
  Core* core = nullptr;
  Executor* core_thread = nullptr;
  Clock* clock = nullptr;
  metrics::Registry* registry = nullptr;
  const rpc::Guard* guard = nullptr;  // null: everybody may call everything
};

// Times one call and counts it when it ends, with its code.
class CallTimer {
 public:
  CallTimer(const ServiceContext& context, std::string_view method);
  void End(const absl::Status& status) const;

 private:
  Clock* const clock_;
  metrics::Registry* const registry_;
  const std::string method_;
  const absl::Duration start_;
};

// UNAVAILABLE (COORDINATOR_BUSY): the queue is full or the coordinator is stopping.
absl::Status Busy();

// Runs `body` on the core's thread and finishes the call with its status. The request and response that it captures
// live until then.
grpc::ServerUnaryReactor* Serve(const ServiceContext& context, grpc::CallbackServerContext* call,
                                std::string_view method, std::function<absl::Status(Core&)> body);

// Who calls; errors as in rpc::Guard::Who.
absl::StatusOr<rpc::Principal> CallerOf(const ServiceContext& context, const grpc::CallbackServerContext& call);

// OK where the caller may act for the island; PERMISSION_DENIED (ISLAND_NOT_YOURS).
absl::Status CheckIsland(const ServiceContext& context, const grpc::CallbackServerContext& call,
                         const std::string& island_id);

}  // namespace atl::coordinator
