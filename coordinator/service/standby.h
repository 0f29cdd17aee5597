// A coordinator that waits for its store. It listens, reports NOT_SERVING in health checks, and rejects every call with
// UNAVAILABLE (COORDINATOR_STANDBY), so that callers use the active one and notice when this one takes over.
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
  // Listens as `server` says; its services are ignored. Serves metrics at `metrics_listen`, with /healthz "not ready";
  // empty: no metrics. `refresh` and errors as of metrics::Exposer; errors as rpc::Server.
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

// Returns the name under which a coordinator that listens at `listen` holds the store's lease. It contains the machine,
// its network and the port, so two live processes never have the same name.
std::string HolderName(const std::string& listen);

}  // namespace atl::coordinator
