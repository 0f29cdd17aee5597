#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <csignal>
#include <cstring>
#include <filesystem>

#include "absl/time/clock.h"
#include "client/cluster/local_cluster.h"
#include "client/commands/commands.h"
#include "common/base/errors.h"
#include "common/base/files.h"
#include "common/base/flag_checks.h"
#include "common/base/quoted.h"
#include "common/base/status_macros.h"
#include "common/base/utf8.h"
#include "fmt/format.h"
#include "nlohmann/json.hpp"

namespace atl::client {
namespace {

struct UpFlags {
  ClusterOptions cluster;
  bool detach = false;
};

void PrintAddresses(const Session& session, const std::string& folder, const ClusterFile& file) {
  if (session.format == OutputFormat::kJson) {
    const nlohmann::ordered_json json = {{"folder", folder},
                                         {"coordinator", file.coordinator},
                                         {"router", file.router},
                                         {"blob_store", file.blob_store},
                                         {"pid", file.pid}};
    *session.out << json.dump() << std::endl;
    return;
  }
  *session.out << fmt::format(
                      "cluster      {}\ncoordinator  {}\nrouter       {}\nblob store   {}\nlogs         {}/logs\n",
                      folder, file.coordinator, file.router, file.blob_store, folder)
               << std::endl;
}

// Absolute, so that the children's working folder does not matter.
absl::StatusOr<ClusterOptions> CompleteOptions(const Session& session, ClusterOptions options) {
  std::error_code error;
  if (options.folder.empty()) options.folder = session.ClusterFolder();
  options.folder = std::filesystem::absolute(options.folder, error).lexically_normal().string();
  if (options.folder.size() > 1 && options.folder.back() == '/') options.folder.pop_back();
  // Other commands read it in cluster.json, which carries no other bytes.
  if (!IsPlainUtf8(options.folder)) {
    return MakeError(absl::StatusCode::kInvalidArgument, "USAGE",
                     fmt::format("--dir: expected a path in UTF-8, found {}", Quoted(options.folder)));
  }
  options.programs = std::filesystem::read_symlink("/proc/self/exe", error).parent_path().string();
  if (error)
    return MakeError(absl::StatusCode::kUnknown, "FILE_ERROR", "cannot read /proc/self/exe: " + error.message());
  return options;
}

// Runs the cluster until a signal.
absl::Status RunCluster(const Session& session, const ClusterOptions& options,
                        const std::function<void(const ClusterFile&)>& ready) {
  ATOLL_ASSIGN_OR_RETURN(const std::unique_ptr<LocalCluster> cluster, LocalCluster::Start(options, absl::Seconds(60)));
  ready(cluster->file());
  bool stopping = false;
  while (!stopping) {
    stopping = cluster->Supervise(absl::Now() + absl::Seconds(1)).has_value();
    for (const std::string& event : cluster->TakeEvents()) *session.err << "atoll: " << event << std::endl;
  }
  *session.err << "atoll: stopping" << std::endl;
  cluster->Stop();
  return absl::OkStatus();
}

// The cluster's own process: a session of its own, output to a log. Says how the start went through `pipe`: "ok", or
// the error. Never returns.
[[noreturn]] void RunDetached(const Session& session, const ClusterOptions& options, int pipe) {
  setsid();
  const std::string log = options.folder + "/logs/up.log";
  const int out = open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  const int null = open("/dev/null", O_RDONLY | O_CLOEXEC);
  dup2(null, STDIN_FILENO);
  dup2(out, STDOUT_FILENO);
  dup2(out, STDERR_FILENO);
  bool ready = false;
  const absl::Status status = RunCluster(session, options, [&](const ClusterFile&) {
    ready = write(pipe, "ok", 2) == 2;
    close(pipe);
  });
  if (!ready) {
    const std::string text = ErrorReason(status) + "\n" + std::string(status.message());
    if (write(pipe, text.data(), text.size()) < 0) *session.err << text << std::endl;
  }
  _exit(status.ok() ? 0 : 1);
}

absl::Status Detach(const Session& session, const ClusterOptions& options) {
  ATOLL_RETURN_IF_ERROR(MakeFolders(options.folder + "/logs"));
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return absl::UnknownError(std::strerror(errno));
  session.out->flush();
  const pid_t pid = fork();
  if (pid < 0) return absl::ResourceExhaustedError(std::strerror(errno));
  if (pid == 0) {
    close(ends[0]);
    RunDetached(session, options, ends[1]);
  }
  close(ends[1]);
  std::string said;
  char buffer[4096];
  for (ssize_t n; (n = read(ends[0], buffer, sizeof(buffer))) > 0 || (n < 0 && errno == EINTR);) {
    if (n > 0) said.append(buffer, static_cast<size_t>(n));
  }
  close(ends[0]);
  if (said != "ok") {
    waitpid(pid, nullptr, 0);
    const size_t line = said.find('\n');
    const std::string reason = said.substr(0, line);
    const auto code =
        reason == "CLUSTER_RUNNING" ? absl::StatusCode::kFailedPrecondition : absl::StatusCode::kUnavailable;
    return MakeError(code, reason.empty() ? "CLUSTER_NOT_READY" : reason,
                     line == std::string::npos ? "the cluster did not start" : said.substr(line + 1));
  }
  ATOLL_ASSIGN_OR_RETURN(const ClusterFile file, ReadClusterFile(options.folder));
  PrintAddresses(session, options.folder, file);
  return absl::OkStatus();
}

absl::Status Up(const Session& session, const UpFlags& flags) {
  ATOLL_ASSIGN_OR_RETURN(const ClusterOptions options, CompleteOptions(session, flags.cluster));
  if (flags.detach) return Detach(session, options);
  return RunCluster(session, options, [&](const ClusterFile& file) {
    PrintAddresses(session, options.folder, file);
    if (session.format == OutputFormat::kTable) *session.out << "ready; Ctrl-C stops it" << std::endl;
  });
}

absl::Status Down(const Session& session, const std::string& folder_flag) {
  const std::string folder = folder_flag.empty() ? session.ClusterFolder() : folder_flag;
  ATOLL_ASSIGN_OR_RETURN(const std::optional<int64_t> pid, RunningCluster(folder));
  if (!pid) {
    return MakeError(absl::StatusCode::kNotFound, "CLUSTER_NOT_FOUND",
                     fmt::format("no cluster is running in {}", folder));
  }
  kill(static_cast<pid_t>(*pid), SIGTERM);
  const absl::Time deadline = absl::Now() + std::max(session.timeout(), absl::Seconds(35));
  while (absl::Now() < deadline) {
    const auto running = RunningCluster(folder);
    if (running.ok() && !running->has_value()) {
      if (session.format == OutputFormat::kTable) *session.out << "stopped\n";
      return absl::OkStatus();
    }
    absl::SleepFor(absl::Milliseconds(50));  // a released lock sends no signal
  }
  return MakeError(absl::StatusCode::kDeadlineExceeded, "CLUSTER_STILL_RUNNING",
                   fmt::format("the cluster in {} (process {}) did not stop in time", folder, *pid));
}

}  // namespace

void AddUpCommand(CLI::App* app, Session* session) {
  auto flags = std::make_shared<UpFlags>();
  CLI::App* command = app->add_subcommand("up", "Runs coordinator, islands, expert servers and router on this machine");
  command->add_option("--dir", flags->cluster.folder, "Folder for state, blobs and logs; kept when the cluster stops");
  command->add_option("--islands", flags->cluster.islands, "Number of islands")
      ->check(WholeNumber(0, 64))
      ->capture_default_str();
  command->add_option("--ranks", flags->cluster.ranks, "Ranks (processes) per island")
      ->check(WholeNumber(1, 64))
      ->capture_default_str();
  command->add_option("--threads", flags->cluster.threads, "Compute threads per rank, and of the router")
      ->check(WholeNumber(1, 256))
      ->capture_default_str();
  command
      ->add_option("--expert-servers", flags->cluster.expert_servers,
                   "Number of servers that host the experts for the router; 0: the router hosts them itself")
      ->check(WholeNumber(0, 64))
      ->capture_default_str();
  command->add_option("--log-level", flags->cluster.log_level, "Of the processes' logs")
      ->check(CLI::IsMember({"debug", "info", "warn", "error"}))
      ->capture_default_str();
  command->add_flag("--detach", flags->detach, "Returns once it is ready; 'atoll down' stops it");
  command->footer(R"(
What dies is started again. Ctrl-C stops everything; no process is left behind, however this one ends. Other commands
find the cluster by its folder: --cluster DIR or ATOLL_CLUSTER, or on their own when --dir is left out.

Examples:
  atoll up --detach
  atoll up --islands 4 --ranks 1 --dir /tmp/atoll
  atoll up --expert-servers 2 --detach && atoll servers list
)");
  command->callback([session, flags] { session->run = [session, flags] { return Up(*session, *flags); }; });
}

void AddDownCommand(CLI::App* app, Session* session) {
  auto folder = std::make_shared<std::string>();
  CLI::App* command = app->add_subcommand("down", "Stops the cluster that 'up' started; its folder stays");
  command->add_option("--dir", *folder, "The folder given to up");
  command->callback([session, folder] { session->run = [session, folder] { return Down(*session, *folder); }; });
}

}  // namespace atl::client
