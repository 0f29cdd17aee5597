#include "common/metrics/exposer.h"

#include <exception>

#include "CivetServer.h"
#include "absl/time/time.h"
#include "common/base/errors.h"
#include "common/base/status_macros.h"
#include "common/http/http_listen.h"
#include "fmt/format.h"

namespace atl::metrics {
namespace {

constexpr char kMetricsPath[] = "/metrics";
constexpr char kThreads[] = "4";
// How long a caller may be silent within a request, or leave an answer unread.
constexpr char kMostMilliseconds[] = "5000";
constexpr absl::Duration kMostAnswerTime = absl::Seconds(30);

void Answer(mg_connection* connection, int code, const char* reason, const char* type, const std::string& body) {
  mg_printf(connection, "HTTP/1.1 %d %s\r\nContent-Type: %s\r\nContent-Length: %zu\r\nCache-Control: no-store\r\n\r\n",
            code, reason, type, body.size());
  mg_write(connection, body.data(), body.size());
}

// Answers for a caller who may not.
void Refuse(mg_connection* connection, const absl::Status& status) {
  const bool unknown = status.code() == absl::StatusCode::kUnauthenticated;
  Answer(connection, unknown ? 401 : 403, unknown ? "Unauthorized\r\nWWW-Authenticate: Bearer" : "Forbidden",
         "text/plain; charset=utf-8", std::string(status.message()) + "\n");
}

class MetricsHandler : public CivetHandler {
 public:
  MetricsHandler(const Registry* registry, std::function<void()> refresh, const http::HttpPort* port)
      : registry_(registry), refresh_(std::move(refresh)), port_(port) {}
  bool handleGet(CivetServer*, mg_connection* connection) override {
    if (const auto caller = port_->Admit(connection, kMetricsPath); !caller.ok()) {
      Refuse(connection, caller.status());
      return true;
    }
    if (refresh_) refresh_();
    Answer(connection, 200, "OK", "text/plain; version=0.0.4; charset=utf-8", registry_->Text());
    return true;
  }

 private:
  const Registry* const registry_;
  const std::function<void()> refresh_;
  const http::HttpPort* const port_;
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
               std::unique_ptr<http::HttpPort> port)
      : port_(std::move(port)),
        metrics_(registry, std::move(refresh), port_.get()),
        health_(std::move(healthy)),
        server_({"listening_ports", port_->civet_listen(), "num_threads", kThreads, "request_timeout_ms",
                 kMostMilliseconds, "enable_directory_listing", "no"}) {
    server_.addHandler(kMetricsPath, metrics_);
    server_.addHandler("/healthz", health_);
    const std::vector<int> ports = server_.getListeningPorts();
    civet_port_ = ports.empty() ? 0 : ports.front();
    if (civet_port_ != 0) port_->Serve(civet_port_);
    address_ = port_->address();
  }

  ~CivetExposer() override {
    const std::string& listen = port_->civet_listen();
    http::CloseListener(fmt::format("{}:{}", listen.substr(0, listen.rfind(':')), civet_port_),
                        [this] { server_.close(); });
  }

  bool listens() const { return civet_port_ != 0; }
  int port() const override { return port_->port(); }
  const std::string& address() const override { return address_; }

 private:
  const std::unique_ptr<http::HttpPort> port_;
  MetricsHandler metrics_;
  HealthHandler health_;
  CivetServer server_;
  int civet_port_ = 0;
  std::string address_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Exposer>> Exposer::Start(const Registry* registry, const std::string& listen,
                                                        std::function<bool()> healthy, std::function<void()> refresh,
                                                        http::HttpSecurity security) {
  ATOLL_ASSIGN_OR_RETURN(std::unique_ptr<http::HttpPort> port,
                         http::HttpPort::Open({.listen = listen,
                                               .what = "metrics",
                                               .open_flag = "--metrics-open",
                                               .security = std::move(security),
                                               .max_connections = 64,
                                               .front_in_clear = true,
                                               .limits = {.max_answer_time = kMostAnswerTime}}));
  try {
    auto exposer = std::make_unique<CivetExposer>(registry, std::move(healthy), std::move(refresh), std::move(port));
    if (exposer->listens()) return exposer;
  } catch (const std::exception&) {
    // Answered below.
  }
  return MakeError(absl::StatusCode::kUnavailable, "CANNOT_LISTEN",
                   fmt::format("cannot serve metrics at {}: the address is taken or not this machine's", listen));
}

}  // namespace atl::metrics
