#include "tests/scale/coordinator_under_load.h"

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "absl/time/clock.h"
#include "common/base/errors.h"
#include "fmt/format.h"

namespace atl::scale {
namespace {

std::string CoordinatorProgram() {
  const char* build = std::getenv("ATOLL_BINARY_DIR");
  // Started by hand: this program lies in <build>/bin or <build>/tests.
  const std::filesystem::path folder =
      build != nullptr ? std::filesystem::path(build)
                       : std::filesystem::read_symlink("/proc/self/exe").parent_path().parent_path();
  return folder / "bin" / "atoll-coordinator";
}

}  // namespace

CoordinatorUnderLoad::CoordinatorUnderLoad(std::string folder, std::vector<std::string> flags)
    : folder_(std::move(folder)), flags_(std::move(flags)) {}

absl::Status CoordinatorUnderLoad::Start() {
  const std::string port_file = folder_ + "/address";
  std::filesystem::remove(port_file);
  std::vector<std::string> command = {CoordinatorProgram(),
                                      "--store",
                                      folder_ + "/store.db",
                                      "--blob-store",
                                      "file://" + folder_ + "/blobs",
                                      "--port-file",
                                      port_file,
                                      "--log-level",
                                      "warn",
                                      "--listen",
                                      address_.empty() ? "127.0.0.1:0" : address_};
  command.insert(command.end(), flags_.begin(), flags_.end());
  process_ = std::make_unique<testing_cluster::Process>(command, folder_ + "/coordinator.log");
  const absl::Time deadline = absl::Now() + absl::Minutes(1);
  while (absl::Now() < deadline && process_->Running()) {
    std::string address;
    std::ifstream(port_file) >> address;
    if (!address.empty()) {
      address_ = address;
      return absl::OkStatus();
    }
    absl::SleepFor(absl::Milliseconds(1));
  }
  return MakeError(absl::StatusCode::kUnavailable, "COORDINATOR_NOT_STARTED",
                   fmt::format("the coordinator does not listen; it said:\n{}", process_->Log()));
}

absl::StatusOr<int64_t> CoordinatorUnderLoad::ResidentBytes() const {
  std::ifstream file(fmt::format("/proc/{}/statm", process_->pid()));
  int64_t all = 0;
  int64_t resident = 0;
  if (!(file >> all >> resident)) return absl::UnavailableError("the coordinator has ended");
  return resident * sysconf(_SC_PAGESIZE);
}

absl::StatusOr<absl::Duration> CoordinatorUnderLoad::ProcessorTime() const {
  std::ifstream file(fmt::format("/proc/{}/stat", process_->pid()));
  std::string text;
  std::getline(file, text);
  // After the program's name, which may hold anything: state, ten numbers, then user and system time.
  const size_t name_end = text.rfind(')');
  if (name_end == std::string::npos) return absl::UnavailableError("the coordinator has ended");
  std::istringstream fields(text.substr(name_end + 1));
  std::string skipped;
  for (int i = 0; i < 11; ++i) fields >> skipped;
  int64_t user = 0;
  int64_t system = 0;
  fields >> user >> system;
  return absl::Seconds(static_cast<double>(user + system) / static_cast<double>(sysconf(_SC_CLK_TCK)));
}

}  // namespace atl::scale
