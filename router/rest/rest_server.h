// The REST facade: images over HTTP and JSON, in the form of OpenAI's images endpoint, from the same engine as gRPC.
//   POST /v1/images/generations, GET /v1/models, GET /v1/models/<name>, GET /healthz
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/http/http_server.h"
#include "router/engine/engine.h"
#include "router/service/caller_quotas.h"

namespace atl::router {

struct RestOptions {
  std::string listen = "127.0.0.1:0";  // "host:port"
  // Guards /v1; /healthz is open to every caller that reaches the port.
  http::HttpSecurity security;
  // Limits the running images of callers; null: no limit. Outlives the server.
  CallerQuotas* quotas = nullptr;
  int max_connections = 512;
  size_t max_body_bytes = size_t{4} << 20;
  // The most images of one request, whose whole answer is held in memory.
  int32_t max_images = 128;
  http::HttpLimits limits;
};

// `route` is one of a few fixed names. Called on the server's thread; must not block.
using RestObserver = std::function<void(std::string_view route, int code, absl::Duration duration)>;

// Thread-safe. The destructor cancels and answers requests that wait for images, and joins the threads.
class RestServer {
 public:
  // `engine` and `clock` must outlive the server; `observer` may be empty. Errors of HttpServer::Start.
  static absl::StatusOr<std::unique_ptr<RestServer>> Start(const RestOptions& options, Engine* engine, Clock* clock,
                                                           RestObserver observer = {});
  virtual ~RestServer() = default;

  virtual int port() const = 0;
  // "host:port" with the bound port.
  virtual const std::string& address() const = 0;
};

}  // namespace atl::router
