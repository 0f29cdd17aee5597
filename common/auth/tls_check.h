// Says why a connection does not come about, where gRPC leaves it at a broken one.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/auth/security_options.h"

namespace atl::rpc {

// Connects to "host:port", to "dns:///host:port", or to each of a list of addresses, as a channel with these options
// would. OK where that works, and where nobody listens, which is nothing of security. UNAVAILABLE with reason
// TLS_EXPECTED (the server speaks TLS, and the options have none), TLS_NOT_SPOKEN (the other way round, or it
// ends every connection since its certificate files are broken: the message then says both), SERVER_NOT_TRUSTED (its
// certificate, and what is wrong with it) or CERTIFICATE_REFUSED (the server does not take ours). Blocks, for about
// `timeout`. The process ignores SIGPIPE: OpenSSL writes to servers that may have closed.
absl::Status ExplainConnection(const SecurityOptions& options, const std::string& address, absl::Duration timeout);

}  // namespace atl::rpc
