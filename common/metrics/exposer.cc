#include "common/metrics/exposer.h"

#include "common/base/status_macros.h"
#include "common/http/http_server.h"

namespace atl::metrics {
namespace {

constexpr std::string_view kMetricsPath = "/metrics";
constexpr std::string_view kHealthPath = "/healthz";

class HttpExposer : public Exposer, private http::HttpService {
 public:
  HttpExposer(const Registry* registry, std::function<bool()> healthy, std::function<void()> refresh)
      : registry_(registry), healthy_(std::move(healthy)), refresh_(std::move(refresh)) {}

  absl::Status Open(const std::string& listen, http::HttpSecurity security) {
    ATOLL_ASSIGN_OR_RETURN(server_, http::HttpServer::Start({.listen = listen,
                                                             .what = "metrics",
                                                             .open_flag = "--metrics-open",
                                                             .security = std::move(security),
                                                             .max_connections = 64},
                                                            this));
    return absl::OkStatus();
  }

  int port() const override { return server_->port(); }
  const std::string& address() const override { return server_->address(); }

 private:
  bool IsGuarded(std::string_view path) const override { return path == kMetricsPath; }

  std::optional<http::HttpResponse> CheckHead(const http::HttpRequest& request, size_t*) override {
    if (request.path != kMetricsPath && request.path != kHealthPath) {
      return http::HttpResponse{.code = 404, .body = "expected /metrics or /healthz\n"};
    }
    if (request.method == "GET" || request.method == "HEAD") return std::nullopt;
    return http::HttpResponse{.code = 405, .body = "expected GET or HEAD\n", .headers = {{"Allow", "GET, HEAD"}}};
  }

  void Handle(std::shared_ptr<http::HttpExchange> exchange) override {
    if (exchange->request().path == kHealthPath) {
      const bool healthy = !healthy_ || healthy_();
      return exchange->Answer({.code = healthy ? 200 : 503, .body = healthy ? "ok\n" : "not ready\n"});
    }
    if (refresh_) refresh_();
    exchange->Answer({.body = registry_->Text(), .type = "text/plain; version=0.0.4; charset=utf-8"});
  }

  http::HttpResponse ErrorResponse(int code, const absl::Status& status) const override {
    return {.code = code, .body = std::string(status.message()) + "\n"};
  }

  const Registry* const registry_;
  const std::function<bool()> healthy_;
  const std::function<void()> refresh_;
  std::unique_ptr<http::HttpServer> server_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Exposer>> Exposer::Start(const Registry* registry, const std::string& listen,
                                                        std::function<bool()> healthy, std::function<void()> refresh,
                                                        http::HttpSecurity security) {
  auto exposer = std::make_unique<HttpExposer>(registry, std::move(healthy), std::move(refresh));
  ATOLL_RETURN_IF_ERROR(exposer->Open(listen, std::move(security)));
  return exposer;
}

}  // namespace atl::metrics
