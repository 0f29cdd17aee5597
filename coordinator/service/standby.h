// A coordinator that waits for its store: it listens, says by health that it does not serve, and refuses every call
// with UNAVAILABLE (COORDINATOR_STANDBY), so that callers go to the active one and notice when this one takes over.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/metrics/exposer.h"
#include "common/metrics/metrics.h"
#include "common/rpc/server.h"

namespace atl::coordinator {

class Standby {
 public:
  // Listens as `server` says; its services are ignored. Metrics at `metrics_listen`, with /healthz "not ready"; none
  // where it is empty. `refresh` and errors as of metrics::Exposer; errors as rpc::Server.
  static absl::StatusOr<std::unique_ptr<Standby>> Start(rpc::ServerOptions server, const std::string& metrics_listen,
                                                        const metrics::Registry* registry,
                                                        http::HttpSecurity metrics_security = {},
                                                        std::function<void()> refresh = {});
  ~Standby();  // the ports are free afterwards

  // "host:port", as bound.
  const std::string& address() const { return server_->address(); }
  int port() const { return server_->port(); }

 private:
  class Refusing;
  Standby();

  std::unique_ptr<Refusing> refusing_;
  std::unique_ptr<rpc::Server> server_;
  std::unique_ptr<metrics::Exposer> exposer_;
};

// Who listens at `listen`, for the lease of the store. Two processes that live at the same time never have the same
// name: it says which machine, which network of it, and which port.
std::string HolderName(const std::string& listen);

}  // namespace atl::coordinator
