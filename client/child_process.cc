#include "client/child_process.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "common/base/errors.h"
#include "fmt/format.h"

namespace atl::client {
namespace {

std::vector<std::string> MergedEnvironment(const ChildOptions& options) {
  std::vector<std::string> merged;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text(*entry);
    bool replaced = false;
    for (const auto& [name, value] : options.environment) {
      replaced = replaced || text.substr(0, text.find('=')) == name;
    }
    if (!replaced) merged.emplace_back(text);
  }
  for (const auto& [name, value] : options.environment) merged.push_back(name + "=" + value);
  return merged;
}

std::vector<char*> Pointers(const std::vector<std::string>& strings) {
  std::vector<char*> pointers;
  for (const std::string& text : strings) pointers.push_back(const_cast<char*>(text.c_str()));
  pointers.push_back(nullptr);
  return pointers;
}

// Between fork and exec: only async-signal-safe calls.
[[noreturn]] void Become(pid_t parent, int log, char* const* arguments, char* const* environment) {
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(127);  // it died before the line above
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  signal(SIGPIPE, SIG_DFL);
  const int null = open("/dev/null", O_RDONLY);
  dup2(null, STDIN_FILENO);
  dup2(log, STDOUT_FILENO);
  dup2(log, STDERR_FILENO);
  execve(arguments[0], arguments, environment);
  _exit(127);
}

}  // namespace

absl::StatusOr<pid_t> StartChild(const ChildOptions& options) {
  const std::string& program = options.command.front();
  if (access(program.c_str(), X_OK) != 0) {
    return MakeError(absl::StatusCode::kNotFound, "PROGRAM_NOT_FOUND",
                     fmt::format("cannot run {}: {}", program, std::strerror(errno)));
  }
  const int log = open(options.log_file.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (log < 0) {
    return MakeError(absl::StatusCode::kUnknown, "FILE_ERROR",
                     fmt::format("cannot open {}: {}", options.log_file, std::strerror(errno)));
  }
  const std::vector<std::string> environment = MergedEnvironment(options);
  const std::vector<char*> argument_pointers = Pointers(options.command);
  const std::vector<char*> environment_pointers = Pointers(environment);
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid == 0) Become(parent, log, argument_pointers.data(), environment_pointers.data());
  const int error = errno;
  close(log);
  if (pid < 0) {
    return MakeError(absl::StatusCode::kResourceExhausted, "CANNOT_FORK",
                     fmt::format("cannot start {}: {}", program, std::strerror(error)));
  }
  return pid;
}

std::string DescribeExit(int wait_status) {
  if (WIFSIGNALED(wait_status)) return fmt::format("was ended by signal {}", WTERMSIG(wait_status));
  return fmt::format("exited with code {}", WEXITSTATUS(wait_status));
}

}  // namespace atl::client
