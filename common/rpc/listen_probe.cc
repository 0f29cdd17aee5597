#include "common/rpc/listen_probe.h"

#include <netdb.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>

#include "common/base/address.h"
#include "common/base/errors.h"
#include "common/base/handles.h"
#include "common/base/status_macros.h"
#include "fmt/format.h"

namespace atl::rpc {
absl::Status CheckListenAddress(const std::string& address) {
  if (HasListenPort(address)) return absl::OkStatus();
  return MakeError(absl::StatusCode::kInvalidArgument, "INVALID_ADDRESS",
                   fmt::format("expected host:port to listen at, with a port from 0 to 65535, found '{}'", address));
}

absl::Status ProbeListen(const std::string& address) {
  ATOLL_RETURN_IF_ERROR(CheckListenAddress(address));
  const size_t colon = address.rfind(':');
  const std::string host = address.substr(0, colon);
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  addrinfo* found = nullptr;
  const int unknown =
      getaddrinfo(host.empty() ? nullptr : host.c_str(), address.substr(colon + 1).c_str(), &hints, &found);
  if (unknown != 0) return absl::OkStatus();
  const Handle<addrinfo, freeaddrinfo> at(found);
  const Descriptor socket(::socket(at->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (socket.get() < 0) return absl::OkStatus();  // no such protocol here: not this probe's business
  // As servers do: connections of an earlier server that still close are no hindrance.
  const int on = 1;
  setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  if (bind(socket.get(), at->ai_addr, at->ai_addrlen) == 0) return absl::OkStatus();
  return MakeError(absl::StatusCode::kUnavailable, "CANNOT_LISTEN",
                   fmt::format("cannot listen at {}: {}", address, std::strerror(errno)));
}

}  // namespace atl::rpc
