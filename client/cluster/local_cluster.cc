#include "client/cluster/local_cluster.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <random>

#include "absl/strings/ascii.h"
#include "absl/time/clock.h"
#include "common/base/errors.h"
#include "common/base/files.h"
#include "common/base/status_macros.h"
#include "fmt/format.h"

namespace atl::client {
namespace {

constexpr absl::Duration kGrace = absl::Seconds(10);
constexpr char kFreePort[] = "127.0.0.1:0";

sigset_t SupervisedSignals() {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGCHLD}) sigaddset(&set, signal);
  return set;
}

bool WaitForStopSignal(absl::Duration wait) {
  sigset_t set = SupervisedSignals();
  sigdelset(&set, SIGCHLD);
  const timespec timeout = absl::ToTimespec(wait);
  return sigtimedwait(&set, nullptr, &timeout) > 0;
}

// A loopback address that is free now. Only for listeners that others must know before they bind; the moment until they
// bind is short, and a lost race ends in a restart.
absl::StatusOr<std::string> FreeAddress() {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  const bool bound = fd >= 0 && bind(fd, reinterpret_cast<sockaddr*>(&address), size) == 0 &&
                     getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) == 0;
  const int error = errno;
  if (fd >= 0) close(fd);
  if (bound) return fmt::format("127.0.0.1:{}", ntohs(address.sin_port));
  return MakeError(absl::StatusCode::kUnavailable, "CANNOT_LISTEN",
                   fmt::format("no free port on 127.0.0.1: {}", std::strerror(error)));
}

// Written once per folder and readable by its owner only, from its first byte on.
absl::Status MakeSecret(const std::string& path) {
  if (std::filesystem::exists(path)) return absl::OkStatus();
  std::random_device random;
  std::string secret;
  for (int i = 0; i < 8; ++i) secret += fmt::format("{:08x}", random());
  const mode_t before = umask(077);
  const absl::Status written = WriteFile(path, secret + "\n");
  umask(before);
  return written;
}

absl::StatusOr<int> TakeLock(const std::string& folder) {
  const std::string path = folder + "/lock";
  const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (fd < 0) {
    return MakeError(absl::StatusCode::kUnknown, "FILE_ERROR",
                     fmt::format("cannot open {}: {}", path, std::strerror(errno)));
  }
  if (flock(fd, LOCK_EX | LOCK_NB) == 0) return fd;
  close(fd);
  return MakeError(absl::StatusCode::kFailedPrecondition, "CLUSTER_RUNNING",
                   fmt::format("a cluster is running in {}; 'atoll down --dir {}' stops it", folder, folder));
}

}  // namespace

LocalCluster::LocalCluster(ClusterOptions options, int lock) : options_(std::move(options)), lock_(lock) {}

LocalCluster::~LocalCluster() {
  Stop();
  close(lock_);
}

absl::StatusOr<std::unique_ptr<LocalCluster>> LocalCluster::Start(const ClusterOptions& options,
                                                                  absl::Duration timeout) {
  for (const char* name : {"", "/store", "/blobs", "/logs", "/run"}) {
    ATOLL_RETURN_IF_ERROR(MakeFolders(options.folder + name));
  }
  ATOLL_ASSIGN_OR_RETURN(const int lock, TakeLock(options.folder));
  // A killed cluster leaves its file behind, whose process id may belong to another process by now.
  unlink(ClusterFilePath(options.folder).c_str());
  const sigset_t signals = SupervisedSignals();
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  std::unique_ptr<LocalCluster> cluster(new LocalCluster(options, lock));
  ATOLL_RETURN_IF_ERROR(cluster->StartAll(absl::Now() + timeout));
  return cluster;
}

absl::Status LocalCluster::StartAll(absl::Time deadline) {
  file_.pid = getpid();
  file_.blob_store = "file://" + Path("blobs");
  ATOLL_RETURN_IF_ERROR(StartCoordinator(deadline));
  ATOLL_RETURN_IF_ERROR(StartIslands());
  ATOLL_RETURN_IF_ERROR(StartExpertServers());
  ATOLL_RETURN_IF_ERROR(StartRouter(deadline));
  return WriteClusterFile(options_.folder, file_);
}

absl::Status LocalCluster::StartCoordinator(absl::Time deadline) {
  ATOLL_ASSIGN_OR_RETURN(
      file_.coordinator,
      LaunchAndAwaitAddress("coordinator", {"--store", Path("store/coordinator.db"), "--blob-store", file_.blob_store},
                            deadline));
  processes_.back()->stops = StopsWith::kCoordinator;
  return absl::OkStatus();
}

std::vector<std::string> LocalCluster::WithCommonFlags(std::vector<std::string> arguments) const {
  arguments.insert(arguments.end(), {"--coordinator", file_.coordinator, "--blob-store", file_.blob_store, "--threads",
                                     fmt::format("{}", options_.threads), "--log-level", options_.log_level});
  return arguments;
}

absl::Status LocalCluster::StartIslands() {
  for (int island = 0; island < options_.islands; ++island) {
    const std::string name = fmt::format("island-{}", island);
    const std::string secret = Path("run/" + name + ".secret");
    ATOLL_RETURN_IF_ERROR(MakeSecret(secret));
    ATOLL_ASSIGN_OR_RETURN(const std::string leader, FreeAddress());
    for (int rank = 0; rank < options_.ranks; ++rank) {
      ATOLL_ASSIGN_OR_RETURN(Process* const process,
                             AddProcess(fmt::format("{}-rank-{}", name, rank), "atoll-worker",
                                        WithCommonFlags({"--island-id", name, "--rank", fmt::format("{}", rank),
                                                         "--ranks", fmt::format("{}", options_.ranks), "--leader",
                                                         leader, "--island-secret-file", secret})));
      ATOLL_RETURN_IF_ERROR(Launch(process));
    }
  }
  return absl::OkStatus();
}

absl::Status LocalCluster::StartExpertServers() {
  for (int server = 0; server < options_.expert_servers; ++server) {
    const std::string name = fmt::format("expert-server-{}", server);
    // At a port that is free at each start: the coordinator tells routers where.
    ATOLL_ASSIGN_OR_RETURN(
        Process* const process,
        AddProcess(name, "atoll-worker", WithCommonFlags({"--serve", "--server-id", name, "--listen", kFreePort})));
    process->stops = StopsWith::kExpertServers;
    ATOLL_RETURN_IF_ERROR(Launch(process));
  }
  return absl::OkStatus();
}

absl::Status LocalCluster::StartRouter(absl::Time deadline) {
  std::vector<std::string> arguments = WithCommonFlags({});
  // Without it a router that is ready before the servers would host every expert itself.
  if (options_.expert_servers > 0) arguments.insert(arguments.end(), {"--own-networks", "router"});
  ATOLL_ASSIGN_OR_RETURN(file_.router, LaunchAndAwaitAddress("router", arguments, deadline));
  return absl::OkStatus();
}

absl::StatusOr<LocalCluster::Process*> LocalCluster::AddProcess(const std::string& name, const std::string& program,
                                                                const std::vector<std::string>& arguments) {
  ATOLL_ASSIGN_OR_RETURN(const std::string metrics, FreeAddress());
  Process* const process = processes_.emplace_back(std::make_unique<Process>()).get();
  process->name = name;
  process->child.command = {options_.programs + "/" + program};
  process->child.command.insert(process->child.command.end(), arguments.begin(), arguments.end());
  process->child.command.insert(process->child.command.end(), {"--metrics-listen", metrics});
  process->child.log_file = Path("logs/" + name + ".log");
  process->child.environment = {fmt::format("OMP_NUM_THREADS={}", options_.threads)};
  // Meant for other clusters: this one speaks in the clear, on this machine alone, and leaves no line in their log.
  for (const char* variable :
       {"ATOLL_TLS_DIR", "ATOLL_CA", "ATOLL_TOKEN_FILE", "ATOLL_PRINCIPALS", "ATOLL_DENY_LIST", "ATOLL_AUDIT_LOG"}) {
    process->child.environment.push_back(std::string(variable) + "=");
  }
  return process;
}

absl::StatusOr<std::string> LocalCluster::LaunchAndAwaitAddress(const std::string& name,
                                                                const std::vector<std::string>& arguments,
                                                                absl::Time deadline) {
  const std::string port_file = Path("run/" + name + ".port");
  unlink(port_file.c_str());
  std::vector<std::string> all = {"--listen", kFreePort, "--port-file", port_file};
  all.insert(all.end(), arguments.begin(), arguments.end());
  ATOLL_ASSIGN_OR_RETURN(Process* const process, AddProcess(name, "atoll-" + name, all));
  ATOLL_RETURN_IF_ERROR(Launch(process));
  while (absl::Now() < deadline) {
    if (const auto text = ReadFile(port_file); text.ok() && text->ends_with('\n')) {
      const std::string address(absl::StripTrailingAsciiWhitespace(*text));
      process->child.command[2] = address;  // --listen: the others keep dialling this port after a restart
      return address;
    }
    int wait_status = 0;
    if (waitpid(process->pid, &wait_status, WNOHANG) == process->pid) {
      process->pid = 0;
      return MakeError(absl::StatusCode::kUnavailable, "CLUSTER_NOT_READY",
                       fmt::format("the {} {}: {}", name, DescribeExit(wait_status), LogTail(name)));
    }
    if (WaitForStopSignal(absl::Milliseconds(20))) {  // a written file sends no signal: poll
      return MakeError(absl::StatusCode::kCancelled, "INTERRUPTED", "interrupted while the cluster started");
    }
  }
  return MakeError(absl::StatusCode::kUnavailable, "CLUSTER_NOT_READY",
                   fmt::format("the {} does not listen yet: {}", name, LogTail(name)));
}

absl::Status LocalCluster::Launch(Process* process) {
  ATOLL_ASSIGN_OR_RETURN(process->pid, StartSubprocess(process->child));
  process->restarts.Started(absl::Now());
  process->start_at = absl::InfiniteFuture();
  return absl::OkStatus();
}

std::string LocalCluster::LogTail(const std::string& name) const {
  const std::string path = Path("logs/" + name + ".log");
  std::string text = ReadFile(path).value_or("");
  constexpr size_t kShown = 500;
  if (text.size() > kShown) text = "…" + text.substr(text.find('\n', text.size() - kShown) + 1);
  return fmt::format("{} says: {}", path, text.empty() ? "nothing" : text);
}

void LocalCluster::Reap(absl::Time now) {
  int wait_status = 0;
  while (true) {
    const pid_t pid = waitpid(-1, &wait_status, WNOHANG);
    if (pid <= 0) return;
    for (const auto& process : processes_) {
      if (process->pid != pid) continue;
      process->pid = 0;
      process->start_at = process->restarts.Died(now);
      events_.push_back(fmt::format("{} {}; starting it again in {:.1f} s", process->name, DescribeExit(wait_status),
                                    absl::ToDoubleSeconds(process->start_at - now)));
    }
  }
}

void LocalCluster::RestartDue(absl::Time now) {
  for (const auto& process : processes_) {
    if (process->pid != 0 || process->start_at > now) continue;
    if (absl::Status status = Launch(process.get()); !status.ok()) {
      process->start_at = process->restarts.Died(now);
      events_.push_back(fmt::format("{}: {}", process->name, std::string(status.message())));
    }
  }
}

absl::Time LocalCluster::NextStart() const {
  absl::Time next = absl::InfiniteFuture();
  for (const auto& process : processes_) {
    if (process->pid == 0) next = std::min(next, process->start_at);
  }
  return next;
}

std::optional<int> LocalCluster::Supervise(absl::Time deadline) {
  const sigset_t signals = SupervisedSignals();
  while (true) {
    const absl::Time now = absl::Now();
    Reap(now);
    RestartDue(now);
    if (now >= deadline) return std::nullopt;
    const absl::Duration wait = std::clamp(std::min(deadline, NextStart()) - now, absl::ZeroDuration(), absl::Hours(1));
    const timespec timeout = absl::ToTimespec(wait);
    const int signal = sigtimedwait(&signals, nullptr, &timeout);
    if (signal > 0 && signal != SIGCHLD) return signal;
  }
}

void LocalCluster::SignalAll(int signal, StopsWith which) {
  for (const auto& process : processes_) {
    if (process->pid != 0 && process->stops == which) kill(process->pid, signal);
  }
}

void LocalCluster::AwaitAllGone(absl::Time deadline, StopsWith which) {
  sigset_t children;
  sigemptyset(&children);
  sigaddset(&children, SIGCHLD);
  while (true) {
    bool any = false;
    for (const auto& process : processes_) {
      if (process->pid == 0 || process->stops != which) continue;
      if (waitpid(process->pid, nullptr, WNOHANG) == process->pid) process->pid = 0;
      any = any || process->pid != 0;
    }
    if (!any || absl::Now() >= deadline) return;
    const timespec timeout = absl::ToTimespec(std::min(deadline - absl::Now(), absl::Milliseconds(200)));
    sigtimedwait(&children, nullptr, &timeout);
  }
}

void LocalCluster::Stop() {
  if (std::exchange(stopped_, true)) return;
  unlink(ClusterFilePath(options_.folder).c_str());
  // The coordinator last: the islands release their tasks at it. Expert servers after the router, whose requests they
  // help to end.
  for (const StopsWith which : {StopsWith::kFirst, StopsWith::kExpertServers, StopsWith::kCoordinator}) {
    SignalAll(SIGTERM, which);
    AwaitAllGone(absl::Now() + kGrace, which);
    SignalAll(SIGKILL, which);
    AwaitAllGone(absl::InfiniteFuture(), which);
  }
}

absl::StatusOr<std::optional<int64_t>> RunningCluster(const std::string& folder) {
  const int fd = open((folder + "/lock").c_str(), O_RDWR | O_CLOEXEC);
  if (fd < 0) return std::optional<int64_t>();
  const bool free = flock(fd, LOCK_SH | LOCK_NB) == 0;
  close(fd);
  if (free) return std::optional<int64_t>();
  ATOLL_ASSIGN_OR_RETURN(const ClusterFile file, ReadClusterFile(folder));
  return std::optional<int64_t>(file.pid);
}

}  // namespace atl::client
