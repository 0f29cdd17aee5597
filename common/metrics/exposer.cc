#include "common/metrics/exposer.h"

#include <exception>
#include <thread>

#include "CivetServer.h"
#include "absl/synchronization/notification.h"
#include "common/base/errors.h"
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
  explicit MetricsHandler(const Registry* registry) : registry_(registry) {}
  bool handleGet(CivetServer*, mg_connection* connection) override {
    Answer(connection, 200, "OK", "text/plain; version=0.0.4; charset=utf-8", registry_->Text());
    return true;
  }

 private:
  const Registry* const registry_;
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

// Opens and closes a connection to a listening port of this machine, so that its poll returns.
void WakeListener(const std::string& listen, int port) {
  const std::string host = listen.substr(0, listen.rfind(':'));
  const std::string dialable = host == "0.0.0.0" ? "127.0.0.1" : host;
  char error[64];
  if (mg_connection* connection = mg_connect_client(dialable.c_str(), port, 0, error, sizeof(error))) {
    mg_close_connection(connection);
  }
}

class CivetExposer : public Exposer {
 public:
  CivetExposer(const Registry* registry, std::function<bool()> healthy, const std::string& listen)
      : metrics_(registry),
        health_(std::move(healthy)),
        server_({"listening_ports", listen, "num_threads", "2", "enable_directory_listing", "no"}) {
    server_.addHandler("/metrics", metrics_);
    server_.addHandler("/healthz", health_);
    const std::vector<int> ports = server_.getListeningPorts();
    port_ = ports.empty() ? 0 : ports.front();
    address_ = fmt::format("{}:{}", listen.substr(0, listen.rfind(':')), port_);
  }

  // CivetWeb looks at its stop flag only after a poll of up to two seconds: connections cut that short.
  ~CivetExposer() override {
    absl::Notification stopped;
    std::thread stopper([this, &stopped] {
      server_.close();
      stopped.Notify();
    });
    while (!stopped.WaitForNotificationWithTimeout(absl::Milliseconds(20))) WakeListener(address_, port_);
    stopper.join();
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
                                                        std::function<bool()> healthy) {
  // CivetWeb reads more into this text (lists, TLS suffixes) than an address; only "host:port" is passed on.
  const size_t colon = listen.rfind(':');
  const bool plain = colon != std::string::npos && colon > 0 && colon + 1 < listen.size() &&
                     listen.find_first_not_of("0123456789", colon + 1) == std::string::npos &&
                     listen.find(',') == std::string::npos;
  if (!plain) {
    return MakeError(absl::StatusCode::kInvalidArgument, "INVALID_ADDRESS",
                     fmt::format("expected host:port for metrics, found '{}'", listen));
  }
  try {
    auto exposer = std::make_unique<CivetExposer>(registry, std::move(healthy), listen);
    if (exposer->port() != 0) return exposer;
  } catch (const std::exception&) {
    // Answered below.
  }
  return MakeError(absl::StatusCode::kUnavailable, "CANNOT_LISTEN",
                   fmt::format("cannot serve metrics at {}: the address is taken or not this machine's", listen));
}

}  // namespace atl::metrics
