// Network addresses as people write them. Pure.
#pragma once

#include <string_view>

namespace atl {

// HOST:PORT with a port from 1 to 65535; a host that is an IPv6 address stands in brackets. gRPC would take a port
// modulo 65536, and ask the network for a name that has none.
bool IsAddress(std::string_view text);

// Whether nobody but this machine reaches HOST:PORT: 127.x.x.x, [::1] or localhost.
bool IsLoopback(std::string_view address);

}  // namespace atl
