// Runs gRPC services on one port, with health and reflection.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/auth/open_streams.h"
#include "common/rpc/channel.h"
#include "grpcpp/generic/async_generic_service.h"
#include "grpcpp/security/server_credentials.h"
#include "grpcpp/server.h"

namespace atl::rpc {

struct NamedService {
  // Full name, for health: atlpb::job::v1::JobService::service_full_name().
  std::string name;
  grpc::Service* service = nullptr;  // borrowed; must outlive the server
};

struct ServerOptions {
  // "host:port"; port 0 takes a free one. IPv6 hosts in brackets.
  std::string listen = "127.0.0.1:0";
  std::vector<NamedService> services;
  // Credentials that the port requires of callers; null: in the clear, for every caller.
  std::shared_ptr<grpc::ServerCredentials> credentials;
  // List of the streams while they are open; null: none.
  std::shared_ptr<OpenStreams> open_streams;
  // Handles calls of methods that no service has; null: UNIMPLEMENTED. Borrowed; must outlive the server.
  grpc::CallbackGenericService* other_calls = nullptr;
  // Largest incoming message.
  int max_message_bytes = kMaxMessageBytes;
  // After this age a connection takes no new calls, so that certificates are checked again and callers spread over the
  // addresses of a name. Its calls get ten minutes to end. Infinite for streams that must last for days.
  absl::Duration max_connection_age = absl::InfiniteDuration();
  // Memory of messages and connections together; gRPC reads more slowly near this limit. 0: no limit.
  int64_t memory_bytes = 0;
};

// A running server. It raises the process's limit of open files (open_files.h). Thread-safe. Health (grpc.health.v1):
// the name "" answers for the process and is SERVING from the start; each service's own name is NOT_SERVING until
// SetServing.
class Server {
 public:
  // UNAVAILABLE, reason CANNOT_LISTEN, when the address cannot be bound.
  static absl::StatusOr<std::unique_ptr<Server>> Start(const ServerOptions& options);

  // The port that was bound.
  int port() const { return port_; }
  // "host:port": the host of `listen` and the bound port.
  const std::string& address() const { return address_; }

  // Sets every service of the options, or one by its name.
  void SetServing(bool serving);
  void SetServing(const std::string& service_name, bool serving);

  // Sets health to NOT_SERVING for every name, also ""; calls are served as before.
  void AnnounceEnd();

  // Sets health to NOT_SERVING and refuses new calls. Running calls get `grace` to end and are then cancelled. Returns
  // when all handlers have ended. Safe to call twice. The services may be destroyed after it.
  void Shutdown(absl::Duration grace);

  ~Server();  // Shutdown without grace

 private:
  Server() = default;

  std::vector<std::string> names_;
  std::unique_ptr<grpc::Server> server_;
  int port_ = 0;
  std::string address_;
};

}  // namespace atl::rpc
