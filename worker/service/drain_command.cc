#include "worker/service/drain_command.h"

#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <fstream>

#include <fmt/format.h>

#include "absl/strings/numbers.h"
#include "common/base/errors.h"
#include "common/base/handles.h"

namespace atl::worker {
namespace {

std::string FirstLine(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

absl::Status SystemError(pid_t process) {
  if (errno == ESRCH) return absl::OkStatus();
  return MakeError(absl::StatusCode::kFailedPrecondition, "PROCESS_UNREACHABLE",
                   fmt::format("process {}: {}", process, std::strerror(errno)));
}

}  // namespace

absl::Status DrainProcess(const std::string& process, absl::Duration timeout) {
  pid_t id = 0;
  if ((!absl::SimpleAtoi(process, &id) && !absl::SimpleAtoi(FirstLine(process), &id)) || id < 1) {
    return MakeError(absl::StatusCode::kInvalidArgument, "INVALID_PROCESS_ID",
                     fmt::format("--drain: expected a process id or a file that holds one, found '{}'", process));
  }
  // By a handle: a process that is named by its id alone may be another one by the time it is signalled.
  const Descriptor handle(static_cast<int>(syscall(SYS_pidfd_open, id, 0)));
  if (handle.get() < 0) return SystemError(id);
  const std::string program = FirstLine(fmt::format("/proc/{}/comm", id));
  if (const std::string own = FirstLine("/proc/self/comm"); program != own) {
    return MakeError(absl::StatusCode::kFailedPrecondition, "NOT_A_WORKER",
                     fmt::format("process {}: expected {}, found {}", id, own, program));
  }
  if (syscall(SYS_pidfd_send_signal, handle.get(), SIGTERM, nullptr, 0) != 0) return SystemError(id);
  pollfd ended{.fd = handle.get(), .events = POLLIN, .revents = 0};
  if (poll(&ended, 1, static_cast<int>(absl::ToInt64Milliseconds(timeout))) > 0) return absl::OkStatus();
  return MakeError(absl::StatusCode::kDeadlineExceeded, "STILL_RUNNING",
                   fmt::format("process {}: expected it to end within {:.0f} s of SIGTERM, found it running", id,
                               absl::ToDoubleSeconds(timeout)));
}

}  // namespace atl::worker
