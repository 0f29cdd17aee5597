#include "common/rpc/http_access.h"

#include <memory>

#include "common/base/status_macros.h"
#include "common/rpc/roles.h"

namespace atl::rpc {

http::HttpSecurity HttpSecurityOf(const Security* security) {
  if (security == nullptr) return {};
  const SecurityOptions& options = security->options();
  http::HttpSecurity http{.tls_dir = options.tls_dir,
                          .require_client_certificate = options.require_client_certificate,
                          .allow_clear = options.insecure_network};
  const std::shared_ptr<const Authenticator> authenticator = security->authenticator();
  if (authenticator == nullptr) {
    http.require_client_certificate |= !options.tls_dir.empty() && !options.insecure_network;
    return http;
  }
  // Tokens must not travel in the clear.
  http.allow_clear = false;
  http.access = [authenticator](const http::HttpCaller& caller,
                                std::string_view route) -> absl::StatusOr<http::HttpSubject> {
    ATOLL_ASSIGN_OR_RETURN(const Principal principal, authenticator->Check(caller.bearer, caller.certificate_names));
    ATOLL_RETURN_IF_ERROR(CheckAccess(route, principal.subject, principal.roles));
    return http::HttpSubject{.name = principal.subject, .images_in_flight = principal.quota.images_in_flight};
  };
  return http;
}

http::HttpSecurity MetricsSecurityOf(const Security* security, bool open) {
  return open ? http::HttpSecurity{.allow_clear = true} : HttpSecurityOf(security);
}

}  // namespace atl::rpc
