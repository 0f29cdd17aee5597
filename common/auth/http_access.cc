#include "common/auth/http_access.h"

#include <memory>
#include <utility>

#include "absl/time/time.h"
#include "common/auth/roles.h"

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
  http.access = [authenticator, guard = security->guard()](
                    const http::HttpCaller& caller, std::string_view route) -> absl::StatusOr<http::HttpSubject> {
    const absl::StatusOr<Principal> principal = authenticator->Check(caller.bearer, caller.certificate_names);
    const absl::Status status =
        principal.ok() ? CheckAccess(route, principal->subject, principal->roles) : principal.status();
    if (status.ok()) {
      return http::HttpSubject{.name = principal->subject,
                               .images_in_flight = principal->quota.images_in_flight,
                               .images_per_minute = principal->quota.images_per_minute};
    }
    guard->Refused({.method = std::string(route),
                    .subject = SubjectOfRefused(principal, caller.certificate_names),
                    .peer = caller.address,
                    .status = status});
    return status;
  };
  return http;
}

http::HttpSecurity MetricsSecurityOf(const Security* security, bool open) {
  return open ? http::HttpSecurity{.allow_clear = true} : HttpSecurityOf(security);
}

std::function<void()> ShowCertificate(std::shared_ptr<const Security> security, metrics::Registry* registry) {
  if (security == nullptr || security->certificate_end() == absl::InfiniteFuture()) return [] {};
  metrics::Gauge* const end =
      registry->AddGauge("atoll_certificate_end_time_seconds",
                         "When the certificate of this process (tls.crt) ends, since the Unix epoch in seconds.");
  return [security = std::move(security), end] {
    end->Set(absl::ToDoubleSeconds(security->certificate_end() - absl::UnixEpoch()));
  };
}

}  // namespace atl::rpc
