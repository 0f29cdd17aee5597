// The security of an HTTP port, and what the server knows of its callers.
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

// A caller who was let in.
struct HttpSubject {
  std::string name = "anonymous";
  // Images that it may have under way at a time; unset: no limit.
  std::optional<int64_t> images_in_flight;
  // Images that it may ask for in a minute; unset: no limit.
  std::optional<int64_t> images_per_minute;
};

// Decides whether a caller may use a route, and says who it is. UNAUTHENTICATED or PERMISSION_DENIED. Called from a
// server's thread, must not block.
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

}  // namespace atl::http
