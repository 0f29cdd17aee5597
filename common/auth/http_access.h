// The security of a process's HTTP ports, from what it knows of its callers, and what they show of it.
#pragma once

#include <functional>
#include <memory>

#include "common/auth/security.h"
#include "common/http/http_security.h"
#include "common/metrics/metrics.h"

namespace atl::rpc {

// TLS as gRPC has it, and the table of roles (roles.h) for routes: a route without a row is for nobody. With TLS and
// without principals callers show a certificate of the authority instead, also at /healthz. Null: in the clear, for
// everybody on this machine. Its guard is told of callers who are refused. `security` may be destroyed.
http::HttpSecurity HttpSecurityOf(const Security* security);

// The same for a port of metrics; when `open` (--metrics-open), in the clear and for everybody, anywhere.
http::HttpSecurity MetricsSecurityOf(const Security* security, bool open);

// What a port of metrics calls before it answers: says when the process's certificate ends
// (atoll_certificate_end_time_seconds). Does nothing, and has no such metric, without a certificate; `security` may be
// null. `registry` outlives it.
std::function<void()> ShowCertificate(std::shared_ptr<const Security> security, metrics::Registry* registry);

}  // namespace atl::rpc
