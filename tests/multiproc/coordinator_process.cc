#include "tests/multiproc/coordinator_process.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>

#include "absl/time/clock.h"

namespace atl::multiproc {
namespace {

std::string BinaryPath() {
  const char* build = std::getenv("ATOLL_BINARY_DIR");
  const std::filesystem::path root = build != nullptr
                                         ? std::filesystem::path(build)
                                         : std::filesystem::read_symlink("/proc/self/exe").parent_path().parent_path();
  return (root / "bin" / "atoll-coordinator").string();
}

std::string ReadFile(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

[[noreturn]] void Exec(const std::vector<std::string>& arguments, const std::string& failpoint,
                       const std::string& log) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  const int descriptor = open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
  dup2(descriptor, STDOUT_FILENO);
  dup2(descriptor, STDERR_FILENO);
  setenv("ATOLL_FAILPOINTS", failpoint.c_str(), 1);
  std::vector<char*> argv;
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  execv(argv[0], argv.data());
  _exit(127);
}

}  // namespace

CoordinatorProcess::~CoordinatorProcess() {
  if (pid_ > 0) Stop(SIGKILL);
}

void CoordinatorProcess::Start(const std::string& failpoint, const std::vector<std::string>& more_flags) {
  std::vector<std::string> arguments = {BinaryPath(),         "--store",      folder_ + "/store.db",
                                        "--blob-store",       blob_root(),    "--port-file",
                                        folder_ + "/address", "--stop-grace", "2s",
                                        "--log-level",        "warn"};
  arguments.insert(arguments.end(), more_flags.begin(), more_flags.end());
  const std::string log = folder_ + "/log";
  pid_ = fork();
  if (pid_ == 0) Exec(arguments, failpoint, log);
}

int CoordinatorProcess::Stop(int signal) {
  kill(pid_, signal);
  int status = 0;
  waitpid(pid_, &status, 0);
  pid_ = 0;
  return status;
}

std::optional<int> CoordinatorProcess::Ended() {
  int status = 0;
  if (pid_ <= 0 || waitpid(pid_, &status, WNOHANG) != pid_) return std::nullopt;
  pid_ = 0;
  return status;
}

std::optional<int> CoordinatorProcess::AwaitEnd(absl::Duration timeout) {
  const absl::Time deadline = absl::Now() + timeout;
  while (absl::Now() < deadline) {
    if (const auto status = Ended()) return status;
    absl::SleepFor(absl::Milliseconds(2));  // waitpid has no deadline of its own
  }
  return std::nullopt;
}

std::string CoordinatorProcess::address() const {
  std::istringstream text(ReadFile(folder_ + "/address"));
  std::string address;
  text >> address;
  return address;
}

std::string CoordinatorProcess::log() const {
  return ReadFile(folder_ + "/log");
}

}  // namespace atl::multiproc
