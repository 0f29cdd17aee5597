// HTTP for people and Prometheus: /metrics, and /healthz for probes that speak no gRPC.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/http/http_security.h"
#include "common/metrics/metrics.h"

namespace atl::metrics {

// Serves from a few threads of its own, joined by the destructor. /healthz is open to every caller that reaches the
// port, even if /metrics is not.
class Exposer {
 public:
  // Listens at "host:port"; port 0 takes a free one. `registry` must outlive it. `healthy` (may be empty: always
  // healthy) runs on a serving thread for every /healthz, which answers 200 "ok" or 503 "not ready". `refresh` (may be
  // empty) runs there before every /metrics, to update metrics that are polled. UNAVAILABLE, reason CANNOT_LISTEN;
  // errors of HttpServer::Start.
  static absl::StatusOr<std::unique_ptr<Exposer>> Start(const Registry* registry, const std::string& listen,
                                                        std::function<bool()> healthy = {},
                                                        std::function<void()> refresh = {},
                                                        http::HttpSecurity security = {});
  virtual ~Exposer() = default;

  virtual int port() const = 0;
  // "host:port" with the bound port.
  virtual const std::string& address() const = 0;
};

}  // namespace atl::metrics
