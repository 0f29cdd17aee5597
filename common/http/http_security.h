// The security of an HTTP port, and the server's view of its callers.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace atl::http {

// A caller, as far as the request shows it.
struct HttpCaller {
  std::string bearer;                          // without "Bearer "; empty: none
  std::vector<std::string> certificate_names;  // of a verified client certificate: common name, DNS names, URIs
  std::string address;                         // "ip:port"
};

// A caller that was accepted.
struct HttpSubject {
  std::string name = "anonymous";
  // Most images that it may have in flight; unset: no limit.
  std::optional<int64_t> images_in_flight;
  // Most images that it may request per minute; unset: no limit.
  std::optional<int64_t> images_per_minute;
};

// Decides whether a caller may use a route, and returns its subject. UNAUTHENTICATED or PERMISSION_DENIED. Runs on a
// server's thread and must not block.
using HttpAccess = std::function<absl::StatusOr<HttpSubject>(const HttpCaller& caller, std::string_view route)>;

struct HttpSecurity {
  // A folder as of TlsFolderOptions; empty: in the clear.
  std::string tls_dir;
  bool require_client_certificate = false;
  // Empty: every caller may do everything.
  HttpAccess access;
  // Allows serving in the clear beyond this machine's loopback.
  bool allow_clear = false;
};

}  // namespace atl::http
