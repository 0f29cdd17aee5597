// Finds out that an address cannot be listened at before anything else is made.
#pragma once

#include <string>

#include "absl/status/status.h"

namespace atl::rpc {

// OK when "host:port" could be bound just now; nothing stays bound, so the server's own start may still fail. OK, too,
// for port 0 and for what is not HOST:PORT: Server::Start says what is wrong with it. UNAVAILABLE, reason
// CANNOT_LISTEN. Blocks while the host's name is looked up.
absl::Status ProbeListen(const std::string& address);

}  // namespace atl::rpc
