#include "common/metrics/exposer.h"

#include <exception>

#include "CivetServer.h"
#include "common/base/errors.h"
#include "common/base/status_macros.h"
#include "common/metrics/http_listen.h"
#include "fmt/format.h"

namespace atl::metrics {
namespace {

void Answer(mg_connection* connection, int code, const char* reason, const char* type, const std::string& body) {
  mg_printf(connection, "HTTP/1.1 %d %s\r\nContent-Type: %s\r\nContent-Length: %zu\r\nCache-Control: no-store\r\n\r\n",
            code, reason, type, body.size());
  mg_write(connection, body.data(), body.size());
}

class MetricsHandler : public CivetHandler {
 public:
  MetricsHandler(const Registry* registry, std::function<void()> refresh)
      : registry_(registry), refresh_(std::move(refresh)) {}
  bool handleGet(CivetServer*, mg_connection* connection) override {
    if (refresh_) refresh_();
    Answer(connection, 200, "OK", "text/plain; version=0.0.4; charset=utf-8", registry_->Text());
    return true;
  }

 private:
  const Registry* const registry_;
  const std::function<void()> refresh_;
};

class HealthHandler : public CivetHandler {
 public:
  explicit HealthHandler(std::function<bool()> healthy) : healthy_(std::move(healthy)) {}
  bool handleGet(CivetServer*, mg_connection* connection) override {
    const bool healthy = !healthy_ || healthy_();
    Answer(connection, healthy ? 200 : 503, healthy ? "OK" : "Service Unavailable", "text/plain",
           healthy ? "ok\n" : "not ready\n");
    return true;
  }

 private:
  const std::function<bool()> healthy_;
};

class CivetExposer : public Exposer {
 public:
  CivetExposer(const Registry* registry, std::function<bool()> healthy, std::function<void()> refresh,
               const std::string& listen)
      : metrics_(registry, std::move(refresh)),
        health_(std::move(healthy)),
        server_({"listening_ports", listen, "num_threads", "2", "enable_directory_listing", "no"}) {
    server_.addHandler("/metrics", metrics_);
    server_.addHandler("/healthz", health_);
    const std::vector<int> ports = server_.getListeningPorts();
    port_ = ports.empty() ? 0 : ports.front();
    address_ = fmt::format("{}:{}", listen.substr(0, listen.rfind(':')), port_);
  }

  ~CivetExposer() override {
    CloseListener(address_, [this] { server_.close(); });
  }

  int port() const override { return port_; }
  const std::string& address() const override { return address_; }

 private:
  MetricsHandler metrics_;
  HealthHandler health_;
  CivetServer server_;
  int port_ = 0;
  std::string address_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Exposer>> Exposer::Start(const Registry* registry, const std::string& listen,
                                                        std::function<bool()> healthy, std::function<void()> refresh) {
  ATOLL_RETURN_IF_ERROR(CheckListenAddress(listen, "metrics"));
  try {
    auto exposer = std::make_unique<CivetExposer>(registry, std::move(healthy), std::move(refresh), listen);
    if (exposer->port() != 0) return exposer;
  } catch (const std::exception&) {
    // Answered below.
  }
  return MakeError(absl::StatusCode::kUnavailable, "CANNOT_LISTEN",
                   fmt::format("cannot serve metrics at {}: the address is taken or not this machine's", listen));
}

}  // namespace atl::metrics
