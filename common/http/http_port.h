// An HTTP port of Atoll: in the clear on this machine, or with TLS; open, or for those alone who may.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "common/http/tls_front.h"

struct mg_connection;

namespace atl::http {

// Who calls, as far as the request shows it.
struct HttpCaller {
  std::string bearer;                          // without "Bearer "; empty: none
  std::vector<std::string> certificate_names;  // of a verified client certificate: common name, DNS names, URIs
  std::string address;                         // "ip:port"
};

// A caller who was let in.
struct HttpSubject {
  std::string name = "anonymous";
  // Images that it may have under way at a time; unset: no limit.
  std::optional<int64_t> images_in_flight;
  // That it may ask for in a minute; unset: no limit.
  std::optional<int64_t> images_per_minute;
};

// Decides whether a caller may use a route, and says who it is. UNAUTHENTICATED or PERMISSION_DENIED. Called from
// serving threads, must not block.
using HttpAccess = std::function<absl::StatusOr<HttpSubject>(const HttpCaller& caller, std::string_view route)>;

struct HttpSecurity {
  // A folder as of TlsFolderOptions; empty: in the clear.
  std::string tls_dir;
  bool require_client_certificate = false;
  // Empty: every caller may do everything.
  HttpAccess access;
  // In the clear at other addresses than this machine's loopback, too.
  bool allow_clear = false;
};

struct HttpPortOptions {
  std::string listen;     // "host:port"; port 0 takes a free one
  std::string what;       // is served there, for messages: "metrics"
  std::string open_flag;  // that sets allow_clear, for messages
  HttpSecurity security;
  int max_connections = 256;
  // In the clear connections come through a TlsFront too: for servers of few threads.
  bool front_in_clear = false;
  // Of the TlsFront, where there is one.
  RelayLimits limits;
};

// What lies between an address and the HTTP server (CivetWeb) that listens at civet_listen(). Thread-safe after Serve;
// destroy it after that server.
class HttpPort {
 public:
  // INVALID_ARGUMENT, reason INVALID_ADDRESS; FAILED_PRECONDITION, reason TLS_REQUIRED, for an address beyond loopback
  // in the clear; errors of TlsFront::Open.
  static absl::StatusOr<std::unique_ptr<HttpPort>> Open(const HttpPortOptions& options, Clock* clock = Clock::Real());

  // Where the HTTP server is to listen, for its settings.
  const std::string& civet_listen() const { return civet_listen_; }
  // The port that it bound there.
  void Serve(int civet_port);

  // The port that callers reach.
  int port() const { return front_ == nullptr ? civet_port_ : front_->port(); }
  // "host:port" with it.
  std::string address() const;
  // "http" or "https".
  std::string_view scheme() const { return options_.security.tls_dir.empty() ? "http" : "https"; }

  // The subject behind a request for `route`, or why it is refused.
  absl::StatusOr<HttpSubject> Admit(const mg_connection* connection, std::string_view route) const;

 private:
  explicit HttpPort(HttpPortOptions options) : options_(std::move(options)) {}

  const HttpPortOptions options_;
  std::string civet_listen_;
  int civet_port_ = 0;
  std::unique_ptr<TlsFront> front_;
};

}  // namespace atl::http
