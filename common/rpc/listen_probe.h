// Finds out that an address cannot be listened at before anything else is made.
#pragma once

#include <string>

#include "absl/status/status.h"

namespace atl::rpc {

// INVALID_ARGUMENT, reason INVALID_ADDRESS, unless `address` is "host:port" with a port from 0 to 65535. The host is
// not looked at.
absl::Status CheckListenAddress(const std::string& address);

// OK when "host:port" could be bound just now; nothing stays bound, so the server's own start may still fail. OK, too,
// for a host that is not known: Server::Start says what is wrong with it. Errors of CheckListenAddress;
// UNAVAILABLE, reason CANNOT_LISTEN. Blocks while the host's name is looked up.
absl::Status ProbeListen(const std::string& address);

}  // namespace atl::rpc
