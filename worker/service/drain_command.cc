#include "worker/service/drain_command.h"

#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <csignal>
#include <cstring>
#include <fstream>

#include <fmt/format.h>

#include "common/base/errors.h"
#include "common/base/files.h"
#include "common/base/handles.h"

namespace atl::worker {
namespace {

absl::StatusOr<pid_t> ParseProcessId(const std::string& text, const std::string& where) {
  pid_t process = 0;
  const char* end = text.data() + text.size();
  const auto [parsed, error] = std::from_chars(text.data(), end, process);
  if (error == std::errc() && parsed == end && process > 0) return process;
  return MakeError(absl::StatusCode::kInvalidArgument, "INVALID_PROCESS_ID",
                   fmt::format("{}: expected a process id, found '{}'", where, text));
}

std::string ProgramOf(const std::string& process) {
  std::ifstream file("/proc/" + process + "/comm");
  std::string name;
  std::getline(file, name);
  return name;
}

absl::Status SystemError(pid_t process, const char* what) {
  if (errno == ESRCH) return absl::OkStatus();
  return MakeError(absl::StatusCode::kFailedPrecondition, "PROCESS_UNREACHABLE",
                   fmt::format("process {}: {}: {}", process, what, std::strerror(errno)));
}

}  // namespace

absl::StatusOr<pid_t> ReadProcessId(const std::string& text) {
  if (!text.empty() && text.find_first_not_of("0123456789") == std::string::npos) {
    return ParseProcessId(text, "--drain");
  }
  const absl::StatusOr<std::string> file = ReadFile(text);
  if (!file.ok()) return WithContext(file.status(), "--drain: expected a process id or a file that holds one");
  return ParseProcessId(file->substr(0, file->find('\n')), text);
}

absl::Status DrainProcess(pid_t process, absl::Duration timeout) {
  // A process that is named by its id alone may be another one by the time it is signalled.
  const Descriptor handle(static_cast<int>(syscall(SYS_pidfd_open, process, 0)));
  if (handle.get() < 0) return SystemError(process, "cannot be opened");
  if (const std::string program = ProgramOf(std::to_string(process)), own = ProgramOf("self"); program != own) {
    return MakeError(absl::StatusCode::kFailedPrecondition, "NOT_A_WORKER",
                     fmt::format("process {}: expected {}, found {}", process, own, program));
  }
  if (syscall(SYS_pidfd_send_signal, handle.get(), SIGTERM, nullptr, 0) != 0)
    return SystemError(process, "cannot be signalled");
  pollfd ended{.fd = handle.get(), .events = POLLIN, .revents = 0};
  if (poll(&ended, 1, static_cast<int>(absl::ToInt64Milliseconds(timeout))) > 0) return absl::OkStatus();
  return MakeError(absl::StatusCode::kDeadlineExceeded, "STILL_RUNNING",
                   fmt::format("process {}: expected it to end within {:.0f} s of SIGTERM, found it running", process,
                               absl::ToDoubleSeconds(timeout)));
}

}  // namespace atl::worker
