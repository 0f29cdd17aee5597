// Explains why a connection fails, where gRPC only reports a broken one.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/auth/security_options.h"

namespace atl::rpc {

// Connects to "host:port", to "dns:///host:port", or to each of a list of addresses, as a channel with these options
// would. OK if that works, and if no server listens, because that is no security error.
// UNAVAILABLE with reason TLS_EXPECTED (the server speaks TLS, and the options have none), TLS_NOT_SPOKEN (the reverse,
// or the server's certificate files are broken and it ends every connection: the message then says both),
// SERVER_NOT_TRUSTED (its certificate, and the error in it) or CERTIFICATE_REFUSED (the server does not accept ours).
// Blocks for about `timeout`. The process must ignore SIGPIPE: OpenSSL writes to servers that may have closed.
absl::Status ExplainConnection(const SecurityOptions& options, const std::string& address, absl::Duration timeout);

}  // namespace atl::rpc
