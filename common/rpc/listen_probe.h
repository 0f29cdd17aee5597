// Detects that an address cannot be listened at before anything else is made.
#pragma once

#include <string>

#include "absl/status/status.h"

namespace atl::rpc {

// INVALID_ARGUMENT, reason INVALID_ADDRESS, unless `address` is "host:port" with a port from 0 to 65535. The host is
// not checked.
absl::Status CheckListenAddress(const std::string& address);

// OK if "host:port" can be bound now. The port is released again, so the server's own start may still fail. Also OK for
// an unknown host: Server::Start reports that. Errors of CheckListenAddress; UNAVAILABLE, reason CANNOT_LISTEN. Blocks
// while the host's name is resolved.
absl::Status ProbeListen(const std::string& address);

}  // namespace atl::rpc
