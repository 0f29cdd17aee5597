// The security of a process's HTTP ports, from the security that the process has for gRPC.
#pragma once

#include <functional>
#include <memory>

#include "common/auth/security.h"
#include "common/http/http_security.h"
#include "common/metrics/metrics.h"

namespace atl::rpc {

// TLS as for gRPC, and the table of roles (roles.h) for routes: a route without a row is closed to all. With TLS but
// without principals, callers need a certificate of the authority instead, also at /healthz. Null: in the clear, for
// every caller on this machine. Reports refused callers to the guard. `security` may be destroyed.
http::HttpSecurity HttpSecurityOf(const Security* security);

// The same for a port of metrics. With `open` (--metrics-open): in the clear, for every caller, from any address.
http::HttpSecurity MetricsSecurityOf(const Security* security, bool open);

// Returns a function that a metrics port calls before it answers: it sets atoll_certificate_end_time_seconds, the end
// of the process's certificate. Without a certificate it does nothing, and the metric does not exist. `security` may be
// null. `registry` outlives it.
std::function<void()> ShowCertificate(std::shared_ptr<const Security> security, metrics::Registry* registry);

}  // namespace atl::rpc
