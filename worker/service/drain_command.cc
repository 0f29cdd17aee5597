#include "worker/service/drain_command.h"

#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>

#include <fmt/format.h>

#include "common/base/errors.h"

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

// Closes it in the end. A process that is named by its id alone may be another one by the time it is signalled.
class ProcessHandle {
 public:
  explicit ProcessHandle(pid_t process) : fd_(static_cast<int>(syscall(SYS_pidfd_open, process, 0))) {}
  ~ProcessHandle() {
    if (fd_ >= 0) close(fd_);
  }
  ProcessHandle(const ProcessHandle&) = delete;
  ProcessHandle& operator=(const ProcessHandle&) = delete;

  int fd() const { return fd_; }
  bool Signal(int signal) const { return syscall(SYS_pidfd_send_signal, fd_, signal, nullptr, 0) == 0; }

 private:
  const int fd_;
};

absl::Status SystemError(pid_t process, const char* what) {
  if (errno == ESRCH) return absl::OkStatus();
  return MakeError(absl::StatusCode::kFailedPrecondition, "PROCESS_UNREACHABLE",
                   fmt::format("process {}: {}: {}", process, what, std::strerror(errno)));
}

}  // namespace

absl::Status WritePidFile(const std::string& path) {
  const std::string part = path + ".part";
  std::ofstream file(part, std::ios::trunc);
  file << getpid() << "\n";
  file.close();
  std::error_code error;
  if (file) std::filesystem::rename(part, path, error);
  if (file && !error) return absl::OkStatus();
  return MakeError(absl::StatusCode::kInvalidArgument, "FILE_ERROR", fmt::format("--pid-file: cannot write {}", path));
}

absl::StatusOr<pid_t> ReadProcessId(const std::string& text) {
  if (!text.empty() && text.find_first_not_of("0123456789") == std::string::npos) {
    return ParseProcessId(text, "--drain");
  }
  std::ifstream file(text);
  std::string line;
  if (!std::getline(file, line)) {
    return MakeError(absl::StatusCode::kInvalidArgument, "FILE_ERROR",
                     fmt::format("--drain: expected a process id or a file that holds one, found '{}'", text));
  }
  return ParseProcessId(line, text);
}

absl::Status DrainProcess(pid_t process, absl::Duration timeout) {
  const ProcessHandle handle(process);
  if (handle.fd() < 0) return SystemError(process, "cannot be opened");
  if (const std::string program = ProgramOf(std::to_string(process)), own = ProgramOf("self"); program != own) {
    return MakeError(absl::StatusCode::kFailedPrecondition, "NOT_A_WORKER",
                     fmt::format("process {}: expected {}, found {}", process, own, program));
  }
  if (!handle.Signal(SIGTERM)) return SystemError(process, "cannot be signalled");
  pollfd ended{.fd = handle.fd(), .events = POLLIN, .revents = 0};
  if (poll(&ended, 1, static_cast<int>(absl::ToInt64Milliseconds(timeout))) > 0) return absl::OkStatus();
  return MakeError(absl::StatusCode::kDeadlineExceeded, "STILL_RUNNING",
                   fmt::format("process {}: expected it to end within {:.0f} s of SIGTERM, found it running", process,
                               absl::ToDoubleSeconds(timeout)));
}

}  // namespace atl::worker
