// An HTTP/1.1 server, in the clear or with TLS, on Boost.Beast and Asio. Their headers stay in this folder's sources.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/http/http_security.h"

namespace atl::http {

// The largest head of a request.
inline constexpr size_t kMaxHeadBytes = 16'384;

struct HttpRequest {
  std::string method;
  std::string path;                            // without the query, decoded; empty: the head could not be read
  std::map<std::string, std::string> headers;  // by their names in lower case; of repeated ones the first
  HttpCaller caller;
  HttpSubject subject;
  std::string body;

  // Empty for a header that is not there.
  std::string header(const std::string& lower_case_name) const {
    const auto found = headers.find(lower_case_name);
    return found == headers.end() ? "" : found->second;
  }
};

struct HttpResponse {
  int code = 200;
  std::string body;
  std::string type = "text/plain; charset=utf-8";
  std::vector<std::pair<std::string, std::string>> headers;
};

// One complete request, and the way to answer it. Thread-safe. Calls after the answer's end, after the connection is
// lost or after the server is destroyed do nothing.
class HttpExchange {
 public:
  virtual ~HttpExchange() = default;

  virtual const HttpRequest& request() const = 0;

  // Answers. Call it once, unless a stream has begun.
  virtual void Answer(HttpResponse response) = 0;

  // Answers 200 with a body of unknown length. Send each piece only after the previous `sent` was called, on a handler
  // thread. If the caller does not read a piece in time, `sent` is never called.
  virtual void StartStream(std::string type, std::function<void()> sent) = 0;
  virtual void Send(std::string piece, std::function<void()> sent) = 0;
  virtual void EndStream(std::string piece) = 0;

  // Calls `gone` on the server's thread, at most once, when the exchange can be given up: CANCELLED, reason
  // REQUEST_CANCELLED, if the caller hangs up; UNAVAILABLE, reason DRAINING, if the server ends. The service must still
  // answer it. `gone` is freed when the answer is written or the connection is lost.
  virtual void OnGone(std::function<void(const absl::Status&)> gone) = 0;

  // Runs `work` on a handler thread.
  virtual void Run(std::function<void()> work) = 0;
};

// The program behind a server. Thread-safe; outlives the server.
class HttpService {
 public:
  virtual ~HttpService() = default;

  // Returns whether requests for `path` need the permission of HttpSecurity::access.
  virtual bool IsGuarded(std::string_view path) const = 0;
  // Checks a head, on the server's thread. A response refuses the request before its body is read; otherwise at most
  // `*max_body_bytes` of body are read. If that stays 0, the request is handled without its body, and the connection
  // ends with the answer.
  virtual std::optional<HttpResponse> CheckHead(const HttpRequest& request, size_t* max_body_bytes) = 0;
  // Answers a complete request, now or later. Runs on one of kHandlerThreads handler threads, so long work must answer
  // from a callback.
  virtual void Handle(std::shared_ptr<HttpExchange> exchange) = 0;
  // Returns the answer to a request that the server refuses.
  virtual HttpResponse ErrorResponse(int code, const absl::Status& status) const = 0;
  // Called on the server's thread when an answer was written or given up. `duration` counts from the head.
  virtual void OnAnswered(const HttpRequest& /*request*/, int /*code*/, absl::Duration /*duration*/) {}
};

// Every time is absolute: traffic in between does not prolong it.
struct HttpLimits {
  // Time from the connection, or from the first byte of a further request, until the whole head has come. Includes the
  // TLS handshake.
  absl::Duration start_time = absl::Seconds(10);
  // Time from the head until the whole body has come.
  absl::Duration body_time = absl::Seconds(30);
  // Time for a caller to read its answer, or one piece of a stream.
  absl::Duration answer_time = absl::Seconds(30);
  // Time that an idle connection is kept between two requests.
  absl::Duration idle_time = absl::Seconds(5);
  // While callers wait because max_connections are open, idle connections are closed at once, and the oldest unfinished
  // requests and unread answers get only this time. An answer to a body that the service accepted keeps its
  // answer_time.
  absl::Duration crowded_time = absl::Seconds(1);
  // Time for the caller to close a finished connection; what it still sends is discarded.
  absl::Duration close_time = absl::Seconds(1);
};

struct HttpServerOptions {
  std::string listen;     // "host:port"; port 0 takes a free one
  std::string what;       // the service, for messages: "metrics"
  std::string open_flag;  // the flag that sets allow_clear, for messages
  HttpSecurity security;
  // Further connections wait to be accepted.
  int max_connections = 256;
  HttpLimits limits;
};

// One thread moves bytes, kHandlerThreads run the service. The destructor calls OnGone of open exchanges, waits until
// they are answered and joins the threads.
class HttpServer {
 public:
  static constexpr int kHandlerThreads = 2;

  // INVALID_ARGUMENT, reason INVALID_ADDRESS, unless `listen` is "host:port" with a port from 0 to 65535;
  // FAILED_PRECONDITION, reason TLS_REQUIRED, for an address beyond loopback in the clear; UNAVAILABLE, reason
  // CANNOT_LISTEN; errors of TlsFolder::Open.
  static absl::StatusOr<std::unique_ptr<HttpServer>> Start(const HttpServerOptions& options, HttpService* service);
  virtual ~HttpServer() = default;

  virtual int port() const = 0;
  // "host:port" with the bound port.
  virtual const std::string& address() const = 0;
};

}  // namespace atl::http
