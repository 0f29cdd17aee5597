#include "common/base/subprocess.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string_view>

#include "common/base/errors.h"
#include "fmt/format.h"

namespace atl {
namespace {

std::vector<std::string> MergedEnvironment(const std::vector<std::string>& changes) {
  const auto name = [](std::string_view entry) { return entry.substr(0, entry.find('=')); };
  std::vector<std::string> merged = changes;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const bool replaced = std::any_of(changes.begin(), changes.end(),
                                      [&](const std::string& change) { return name(change) == name(*entry); });
    if (!replaced) merged.emplace_back(*entry);
  }
  return merged;
}

std::vector<char*> Pointers(const std::vector<std::string>& strings) {
  std::vector<char*> pointers;
  for (const std::string& text : strings) pointers.push_back(const_cast<char*>(text.c_str()));
  pointers.push_back(nullptr);
  return pointers;
}

// Runs between fork and exec: makes only async-signal-safe calls.
[[noreturn]] void Become(const SubprocessOptions& options, pid_t parent, int output, int error, char* const* arguments,
                         char* const* environment) {
  setpgid(0, 0);
  if (options.dies_with_thread) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(127);  // the parent died before the line above
  }
  for (int number = 1; number < NSIG; ++number) signal(number, SIG_DFL);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  dup2(options.input ? *options.input : open("/dev/null", O_RDONLY), STDIN_FILENO);
  dup2(output, STDOUT_FILENO);
  dup2(error, STDERR_FILENO);
  closefrom(STDERR_FILENO + 1);
  execve(arguments[0], arguments, environment);
  _exit(127);
}

}  // namespace

absl::StatusOr<pid_t> StartSubprocess(const SubprocessOptions& options) {
  const std::string& program = options.command.front();
  if (access(program.c_str(), X_OK) != 0) {
    return MakeError(absl::StatusCode::kNotFound, "PROGRAM_NOT_FOUND",
                     fmt::format("cannot run {}: {}", program, std::strerror(errno)));
  }
  int log = -1;
  if (!options.log_file.empty()) {
    log = open(options.log_file.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    if (log < 0) {
      return MakeError(absl::StatusCode::kUnknown, "FILE_ERROR",
                       fmt::format("cannot open {}: {}", options.log_file, std::strerror(errno)));
    }
  }
  const int output = log >= 0 ? log : options.output.value_or(STDOUT_FILENO);
  const int error = log >= 0 ? log : options.error.value_or(STDERR_FILENO);
  const std::vector<std::string> environment = MergedEnvironment(options.environment);
  const std::vector<char*> argument_pointers = Pointers(options.command);
  const std::vector<char*> environment_pointers = Pointers(environment);
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid == 0) Become(options, parent, output, error, argument_pointers.data(), environment_pointers.data());
  const int fork_error = errno;
  if (pid > 0) setpgid(pid, pid);  // as the child does: a signal to its group may come before its first instruction
  if (log >= 0) close(log);
  if (pid < 0) {
    return MakeError(absl::StatusCode::kResourceExhausted, "CANNOT_FORK",
                     fmt::format("cannot start {}: {}", program, std::strerror(fork_error)));
  }
  return pid;
}

std::string DescribeExit(int wait_status) {
  if (WIFSIGNALED(wait_status)) return fmt::format("was ended by signal {}", WTERMSIG(wait_status));
  return fmt::format("exited with code {}", WEXITSTATUS(wait_status));
}

}  // namespace atl
