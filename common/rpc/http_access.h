// The security of a process's HTTP ports, from what it knows of its callers.
#pragma once

#include "common/http/http_port.h"
#include "common/rpc/security.h"

namespace atl::rpc {

// TLS as gRPC has it, and the table of roles (roles.h) for routes: a route without a row is for nobody. With TLS and
// without principals callers show a certificate of the authority instead, also at /healthz. Null: in the clear, for
// everybody on this machine. Its guard is told of callers who are refused. `security` may be destroyed.
http::HttpSecurity HttpSecurityOf(const Security* security);

// The same for a port of metrics; when `open` (--metrics-open), in the clear and for everybody, anywhere.
http::HttpSecurity MetricsSecurityOf(const Security* security, bool open);

}  // namespace atl::rpc
