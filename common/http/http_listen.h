// What every CivetWeb server of Atoll needs beside the library.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace atl::http {

// CivetWeb reads more into its text (lists, TLS suffixes) than an address. INVALID_ARGUMENT, reason INVALID_ADDRESS,
// unless `listen` is "host:port" with a port from 0 to 65535; `what` is served there, for the message.
absl::Status CheckListenAddress(const std::string& listen, std::string_view what);

// Runs `close`, which ends the server at `address` ("host:port"). CivetWeb looks at its stop flag only after a poll of
// up to two seconds: connections cut that short.
void CloseListener(const std::string& address, const std::function<void()>& close);

}  // namespace atl::http
