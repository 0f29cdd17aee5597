#include "common/rpc/open_files.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <mutex>

#include "grpcpp/version_info.h"
#include "spdlog/spdlog.h"

#if GRPC_CPP_VERSION_MAJOR * 10000 + GRPC_CPP_VERSION_MINOR * 100 + GRPC_CPP_VERSION_PATCH < 15302
#define ATOLL_OVERRIDE_ACCEPT4
#endif

namespace atl::rpc {

#ifdef ATOLL_OVERRIDE_ACCEPT4
namespace {

// A descriptor to give up for a moment where there is no other.
std::mutex spare_mutex;
int spare = -1;

int OpenSpare() {
  return open("/dev/null", O_RDONLY | O_CLOEXEC);
}

// Takes one connection off the queue of `listener` and closes it. Whether there was one.
bool Refuse(int listener) {
  const std::lock_guard lock(spare_mutex);
  if (spare >= 0) close(spare);
  const int refused = static_cast<int>(syscall(SYS_accept4, listener, nullptr, nullptr, SOCK_CLOEXEC));
  const int error = errno;
  if (refused >= 0) close(refused);
  spare = OpenSpare();
  errno = error;
  return refused >= 0;
}

void MakeSpare() {
  const std::lock_guard lock(spare_mutex);
  if (spare < 0) spare = OpenSpare();
}

}  // namespace
#endif

int64_t RaiseOpenFiles() {
#ifdef ATOLL_OVERRIDE_ACCEPT4
  MakeSpare();
#endif
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return 0;
  const rlimit raised{.rlim_cur = limit.rlim_max, .rlim_max = limit.rlim_max};
  if (limit.rlim_cur < limit.rlim_max && setrlimit(RLIMIT_NOFILE, &raised) == 0) limit = raised;
  const int64_t files = static_cast<int64_t>(std::min<rlim_t>(limit.rlim_cur, INT64_MAX));
  static std::once_flag told;
  if (files < kWantedOpenFiles) {
    std::call_once(told, [files] {
      spdlog::warn(
          "at most {} files and connections can be open at a time: raise the hard limit (ulimit -Hn, systemd's "
          "LimitNOFILE) to {} for many islands or callers",
          files, kWantedOpenFiles);
    });
  }
  return files;
}

}  // namespace atl::rpc

#ifdef ATOLL_OVERRIDE_ACCEPT4
extern "C" int accept4(int listener, sockaddr* address, socklen_t* size, int flags) {
  while (true) {
    const int accepted = static_cast<int>(syscall(SYS_accept4, listener, address, size, flags));
    if (accepted >= 0 || (errno != EMFILE && errno != ENFILE)) return accepted;
    // Without a spare descriptor, retry later: epoll signals the next connection.
    if (!atl::rpc::Refuse(listener) && (errno == EMFILE || errno == ENFILE)) {
      errno = EAGAIN;
      return -1;
    }
  }
}
#endif
