#include "tests/multiproc/process.h"

#include <signal.h>
#include <sys/wait.h>

#include <fstream>
#include <sstream>
#include <utility>

#include "common/base/subprocess.h"

namespace atl::testing_cluster {

Process::Process(std::vector<std::string> command, std::string log_path, std::vector<std::string> environment)
    : log_path_(std::move(log_path)) {
  const absl::StatusOr<pid_t> pid =
      StartSubprocess({.command = std::move(command), .environment = std::move(environment), .log_file = log_path_});
  if (pid.ok()) {
    pid_ = *pid;
  } else {
    std::ofstream(log_path_, std::ios::app) << pid.status().ToString() << '\n';
    exit_ = 127;
  }
}

Process::~Process() {
  Kill();
}

std::string Process::Log() const {
  std::ifstream file(log_path_);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

void Process::Signal(int signal) const {
  if (pid_ > 0 && !exit_.has_value()) kill(pid_, signal);
}

bool Process::Running() {
  return !Wait(absl::ZeroDuration()).has_value();
}

std::optional<int> Process::Wait(absl::Duration timeout) {
  Await(timeout, [this] {
    if (exit_.has_value() || pid_ <= 0) return true;
    int status = 0;
    if (waitpid(pid_, &status, WNOHANG) != pid_) return false;
    exit_ = WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
    return true;
  });
  return exit_;
}

void Process::Kill() {
  Signal(SIGKILL);
  Wait(absl::Seconds(10));
}

}  // namespace atl::testing_cluster
