#include "common/http/http_port.h"

#include <optional>

#include "absl/strings/match.h"
#include "absl/strings/strip.h"
#include "civetweb.h"
#include "common/base/address.h"
#include "common/base/errors.h"
#include "common/base/status_macros.h"
#include "common/http/http_listen.h"
#include "fmt/format.h"

namespace atl::http {
namespace {

constexpr absl::string_view kBearer = "Bearer ";

std::string BearerOf(const mg_connection* connection) {
  const char* const header = mg_get_header(connection, "Authorization");
  if (header == nullptr || !absl::StartsWithIgnoreCase(header, kBearer)) return "";
  return std::string(absl::StripAsciiWhitespace(absl::string_view(header).substr(kBearer.size())));
}

}  // namespace

absl::StatusOr<std::unique_ptr<HttpPort>> HttpPort::Open(const HttpPortOptions& options, Clock* clock) {
  ATOLL_RETURN_IF_ERROR(CheckListenAddress(options.listen, options.what));
  const HttpSecurity& security = options.security;
  std::unique_ptr<HttpPort> port(new HttpPort(options));
  if (security.tls_dir.empty()) {
    if (!security.allow_clear && !IsLoopback(options.listen)) {
      return MakeError(absl::StatusCode::kFailedPrecondition, "TLS_REQUIRED",
                       fmt::format("{} at {} could be read by everybody on the network: give --tls-dir DIR to serve it "
                                   "over TLS, an address of this machine's loopback, or {} to serve it in the clear",
                                   options.what, options.listen, options.open_flag));
    }
    if (!options.front_in_clear) {
      port->civet_listen_ = options.listen;
      return port;
    }
  }
  port->civet_listen_ = "127.0.0.1:0";
  ATOLL_ASSIGN_OR_RETURN(port->front_,
                         TlsFront::Open({.listen = options.listen,
                                         .tls = {.folder = security.tls_dir,
                                                 .require_client_certificate = security.require_client_certificate},
                                         .max_connections = options.max_connections,
                                         .limits = options.limits},
                                        clock));
  return port;
}

void HttpPort::Serve(int civet_port) {
  civet_port_ = civet_port;
  if (front_ != nullptr) front_->Serve(civet_port);
}

std::string HttpPort::address() const {
  return fmt::format("{}:{}", options_.listen.substr(0, options_.listen.rfind(':')), port());
}

absl::StatusOr<HttpSubject> HttpPort::Admit(const mg_connection* connection, std::string_view route) const {
  const mg_request_info& request = *mg_get_request_info(connection);
  HttpCaller caller{.address = fmt::format("{}:{}", request.remote_addr, request.remote_port)};
  if (front_ != nullptr) {
    std::optional<TlsPeer> peer = front_->PeerOf(request.remote_addr, request.remote_port);
    if (!peer && !options_.security.tls_dir.empty()) {
      return MakeError(absl::StatusCode::kPermissionDenied, "TLS_REQUIRED",
                       fmt::format("expected a connection over TLS to {}, found one behind it", address()));
    }
    if (peer) {
      caller.address = std::move(peer->address);
      caller.certificate_names = std::move(peer->names);
    }
  }
  if (!options_.security.access) return HttpSubject{};
  caller.bearer = BearerOf(connection);
  return options_.security.access(caller, route);
}

}  // namespace atl::http
