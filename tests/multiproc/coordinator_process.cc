#include "tests/multiproc/coordinator_process.h"

#include <signal.h>
#include <sys/wait.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>

#include "absl/time/clock.h"
#include "common/base/subprocess.h"

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

}  // namespace

CoordinatorProcess::~CoordinatorProcess() {
  if (pid_ > 0) Stop(SIGKILL);
}

void CoordinatorProcess::Start(const std::string& failpoint, const std::vector<std::string>& more_flags) {
  std::vector<std::string> arguments = {BinaryPath(),         "--store",     folder_ + "/store.db",
                                        "--blob-store",       blob_root(),   "--port-file",
                                        folder_ + "/address", "--log-level", "warn"};
  arguments.insert(arguments.end(), more_flags.begin(), more_flags.end());
  pid_ = *StartSubprocess({.command = std::move(arguments),
                           .environment = {"ATOLL_FAILPOINTS=" + failpoint},
                           .log_file = folder_ + "/log"});
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
