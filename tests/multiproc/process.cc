#include "tests/multiproc/process.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <sstream>
#include <string_view>
#include <utility>

namespace atl::testing_cluster {
namespace {

// Of "NAME=value".
std::string_view NameOf(std::string_view entry) {
  return entry.substr(0, entry.find('='));
}

bool Sets(const std::vector<std::string>& environment, std::string_view name) {
  return std::any_of(environment.begin(), environment.end(),
                     [&](const std::string& entry) { return NameOf(entry) == name; });
}

}  // namespace

Process::Process(std::vector<std::string> command, std::string log_path, std::vector<std::string> environment)
    : log_path_(std::move(log_path)) {
  // Between fork and exec only calls that are safe there: everything is made before.
  std::vector<char*> arguments;
  for (std::string& argument : command) arguments.push_back(argument.data());
  arguments.push_back(nullptr);
  std::vector<char*> variables;
  for (std::string& entry : environment) variables.push_back(entry.data());
  for (char** entry = environ; *entry != nullptr; ++entry) {
    if (!Sets(environment, NameOf(*entry))) variables.push_back(*entry);
  }
  variables.push_back(nullptr);
  const int log = open(log_path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  const pid_t parent = getpid();
  pid_ = fork();
  if (pid_ != 0) {
    close(log);
    return;
  }
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(127);
  dup2(log, STDOUT_FILENO);
  dup2(log, STDERR_FILENO);
  execve(arguments[0], arguments.data(), variables.data());
  std::perror(arguments[0]);
  _exit(127);
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
