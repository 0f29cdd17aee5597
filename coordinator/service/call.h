// The path of calls to the core: one function per unary call, which runs on the core's thread and answers from there,
// so that no gRPC thread ever waits.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/auth/guard.h"
#include "common/base/clock.h"
#include "common/metrics/metrics.h"
#include "common/wire/status.h"
#include "coordinator/blobs/storage_grants.h"
#include "coordinator/core/core.h"
#include "coordinator/core/executor.h"
#include "coordinator/service/audit.h"
#include "coordinator/service/open_watches.h"
#include "google/protobuf/message.h"
#include "grpcpp/server_context.h"
#include "grpcpp/support/server_callback.h"

namespace atl::coordinator {

// State that all services share. It outlives the services.
struct ServiceContext {
  Core* core = nullptr;
  Executor* core_thread = nullptr;
  Clock* clock = nullptr;
  metrics::Registry* registry = nullptr;
  const rpc::Guard* guard = nullptr;  // null: every caller may make every call
  OpenWatches* watches = nullptr;
  AuditLog* audit = nullptr;                // null: no audit log
  StorageGrants* storage_grants = nullptr;  // null: islands use their own keys
};

// A call's method, without its service: "CancelJob".
struct CallName {
  // A call that changes nothing.
  CallName(const char* method) : method(method) {}
  // A call that changes `resource`, which the audit log names.
  CallName(const char* method, std::string resource) : method(method), resource(std::move(resource)) {}

  std::string method;
  std::optional<std::string> resource;
};

// Times one call. When the call ends, counts it with its code and writes it to the audit log if it changes something or
// is rejected; calls that changed nothing are written at a bounded rate (AuditLog::WriteRefused).
class CallTimer {
 public:
  // Reads the caller from `call`; keeps no reference to it.
  CallTimer(const ServiceContext& context, const grpc::CallbackServerContext& call, CallName name);
  // Names the resource that the call changes, if it is known only during the call.
  void Changes(std::string resource) { name_.resource = std::move(resource); }
  // Names a resource that has changed, even if the call ends with an error. Without it an error means no change.
  void Changed(std::string resource) {
    Changes(std::move(resource));
    changed_ = true;
  }
  // Must be called before the caller is answered.
  void End(const absl::Status& status) const;

 private:
  Clock* const clock_;
  metrics::Registry* const registry_;
  AuditLog* const audit_;
  CallName name_;
  bool changed_ = false;
  std::string subject_;
  std::string peer_;
  const absl::Duration start_;
};

// Returns UNAVAILABLE (COORDINATOR_BUSY): the queue is full or the coordinator is stopping.
absl::Status Busy();

// Returns the key that a repeated call must have, with its caller's permissions. Errors as of CallerOf.
absl::StatusOr<CallKey> KeyOf(const ServiceContext& context, const grpc::CallbackServerContext& call,
                              std::string_view method, const std::string& request_id,
                              const google::protobuf::Message& request);
template <typename Request>
absl::StatusOr<CallKey> KeyOf(const ServiceContext& context, const grpc::CallbackServerContext& call,
                              std::string_view method, const Request& request) {
  return KeyOf(context, call, method, request.request_id(), request);
}

// Parses the encoded response in `bytes`. DATA_LOSS (STORE_CORRUPT) for other bytes.
absl::Status Decode(const absl::StatusOr<std::string>& bytes, google::protobuf::Message* response);

// Runs `body` on the core's thread and finishes the call with its status. The request and response that it captures
// live until then.
grpc::ServerUnaryReactor* Serve(const ServiceContext& context, grpc::CallbackServerContext* call, CallName name,
                                std::function<absl::Status(Core&)> body);

// Serves a call that changes something and that its caller may repeat by its request_id. `body` returns the encoded
// response.
template <typename Request, typename Response>
grpc::ServerUnaryReactor* ServeChange(const ServiceContext& context, grpc::CallbackServerContext* call, CallName name,
                                      const Request* request, Response* response,
                                      std::function<absl::StatusOr<std::string>(Core&, const CallKey&)> body) {
  absl::StatusOr<CallKey> key = KeyOf(context, *call, name.method, *request);
  return Serve(context, call, std::move(name),
               [key = std::move(key), response, body = std::move(body)](Core& core) -> absl::Status {
                 return key.ok() ? Decode(body(core, *key), response) : key.status();
               });
}

// Returns the caller; errors as in rpc::Guard::Who.
absl::StatusOr<rpc::Principal> CallerOf(const ServiceContext& context, const grpc::CallbackServerContext& call);

// Returns the caller's name; empty if its credential is no longer valid.
std::string SubjectOf(const ServiceContext& context, const grpc::CallbackServerContext& call);

// Returns OK if the caller may act for the island that holds the token's attempt. Must run before the secret is
// checked: PERMISSION_DENIED (ISLAND_NOT_YOURS) reveals nothing about it. Runs on the core's thread.
absl::Status CheckHolder(Core& core, const absl::StatusOr<rpc::Principal>& caller, const spec::LeaseToken& token);

// Serves a call that names an attempt: `body` runs only if the caller may act for the island that holds it. Every call
// that changes an attempt must use this function.
grpc::ServerUnaryReactor* ServeAttempt(const ServiceContext& context, grpc::CallbackServerContext* call, CallName name,
                                       spec::LeaseToken token,
                                       std::function<absl::Status(Core&, const spec::LeaseToken&)> body);

// Returns OK if the caller may act for the island; otherwise PERMISSION_DENIED (ISLAND_NOT_YOURS).
absl::Status CheckIsland(const ServiceContext& context, const grpc::CallbackServerContext& call,
                         const std::string& island_id);

}  // namespace atl::coordinator
