// Network addresses as people write them. Pure.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace atl {

// Accepts HOST:PORT with a port from 1 to 65535; an IPv6 host stands in brackets. gRPC would take a port modulo 65536,
// and look up a name without a port in DNS.
bool IsAddress(std::string_view text);

// Returns whether an address to listen at ends in a port from 0, which takes a free one, to 65535. The system, too,
// would take a port modulo 65536.
bool HasListenPort(std::string_view address);

// Splits a list "HOST:PORT,HOST:PORT" of servers of which one serves.
std::vector<std::string> SplitAddresses(std::string_view list);
// Returns whether every entry is an address, or the whole is "dns:///HOST:PORT", a name of all servers.
bool IsAddressList(std::string_view list);

// Returns whether only this machine can reach HOST:PORT: 127.x.x.x, [::1] or localhost.
bool IsLoopback(std::string_view address);

}  // namespace atl
