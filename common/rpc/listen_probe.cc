#include "common/rpc/listen_probe.h"

#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "common/base/address.h"
#include "common/base/errors.h"
#include "common/base/status_macros.h"
#include "fmt/format.h"

namespace atl::rpc {
namespace {

// 0, or the error of bind.
int TryBind(const addrinfo& at) {
  const int fd = socket(at.ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return 0;  // no such protocol here: not this probe's business
  // As servers do: connections of an earlier server that still close are no hindrance.
  const int on = 1;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  const int error = bind(fd, at.ai_addr, at.ai_addrlen) == 0 ? 0 : errno;
  close(fd);
  return error;
}

}  // namespace

absl::Status CheckListenAddress(const std::string& address) {
  if (HasListenPort(address)) return absl::OkStatus();
  return MakeError(absl::StatusCode::kInvalidArgument, "INVALID_ADDRESS",
                   fmt::format("expected host:port to listen at, with a port from 0 to 65535, found '{}'", address));
}

absl::Status ProbeListen(const std::string& address) {
  ATOLL_RETURN_IF_ERROR(CheckListenAddress(address));
  const size_t colon = address.rfind(':');
  if (address.substr(colon + 1) == "0") return absl::OkStatus();
  std::string host = address.substr(0, colon);
  if (host.size() > 1 && host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  addrinfo* found = nullptr;
  const std::string port = address.substr(colon + 1);
  if (getaddrinfo(host.empty() ? nullptr : host.c_str(), port.c_str(), &hints, &found) != 0) return absl::OkStatus();
  const int error = TryBind(*found);
  freeaddrinfo(found);
  if (error == 0) return absl::OkStatus();
  return MakeError(absl::StatusCode::kUnavailable, "CANNOT_LISTEN",
                   fmt::format("cannot listen at {}: {}", address, std::strerror(error)));
}

}  // namespace atl::rpc
