// Coordinator, islands, expert servers and router as child processes on this machine, restarted when they die.
//
// DIR/cluster.json   addresses, written once all listen, removed at the end
// DIR/store/         the coordinator's state          DIR/blobs/   the blob store
// DIR/logs/          one log per process              DIR/run/     port files, island secrets
// DIR/lock           held while the cluster runs: one cluster per folder
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/cluster/cluster_file.h"
#include "client/cluster/supervision.h"
#include "common/base/subprocess.h"

namespace atl::client {

struct ClusterOptions {
  std::string folder;
  std::string programs;  // folder of atoll-coordinator, atoll-worker and atoll-router
  int islands = 2;
  int ranks = 2;
  int threads = 1;
  int expert_servers = 0;  // with some, the router leaves the experts to them
  std::string log_level = "info";
};

// Belongs to the thread that made it, because the end of that thread kills the children. Blocks SIGINT, SIGTERM, SIGHUP
// and SIGCHLD for good in that thread and in threads that it makes later; Supervise takes these signals.
class LocalCluster {
 public:
  // Starts everything and waits until the coordinator and the router listen. Returns FAILED_PRECONDITION
  // (CLUSTER_RUNNING) when another cluster holds the folder. Returns UNAVAILABLE (CLUSTER_NOT_READY), with the last
  // lines of the log of the process that did not start within `timeout`.
  static absl::StatusOr<std::unique_ptr<LocalCluster>> Start(const ClusterOptions& options, absl::Duration timeout);

  const ClusterFile& file() const { return file_; }

  // Restarts processes that die, until a signal asks to stop (returns its number) or `deadline` passes (nullopt).
  std::optional<int> Supervise(absl::Time deadline);
  // Lines about deaths and restarts since the last call.
  std::vector<std::string> TakeEvents() { return std::exchange(events_, {}); }

  // Asks the islands and the router to end, then the expert servers, then the coordinator. Kills the processes of a
  // group that remain after a grace of 10 s. Idempotent.
  void Stop();
  ~LocalCluster();

 private:
  // Groups of processes that end together, in the order in which Stop ends them.
  enum class StopsWith { kFirst, kExpertServers, kCoordinator };

  struct Process {
    std::string name;
    StopsWith stops = StopsWith::kFirst;
    SubprocessOptions child;
    RestartPolicy restarts;
    pid_t pid = 0;  // 0: not running
    absl::Time start_at = absl::InfinitePast();
  };

  LocalCluster(ClusterOptions options, int lock);

  absl::Status StartAll(absl::Time deadline);
  absl::Status StartCoordinator(absl::Time deadline);
  absl::Status StartIslands();
  absl::Status StartExpertServers();
  absl::Status StartRouter(absl::Time deadline);
  absl::Status Launch(Process* process);
  // Starts `name`, waits for its port file, and pins the port for later restarts.
  absl::StatusOr<std::string> LaunchAndAwaitAddress(const std::string& name, const std::vector<std::string>& arguments,
                                                    absl::Time deadline);
  // Adds `program` with `arguments`, and with metrics at a port of its own. Does not start it.
  absl::StatusOr<Process*> AddProcess(const std::string& name, const std::string& program,
                                      const std::vector<std::string>& arguments);
  // Returns `arguments` with the flags that islands, expert servers and the router share.
  std::vector<std::string> WithCommonFlags(std::vector<std::string> arguments) const;
  void Reap(absl::Time now);
  void RestartDue(absl::Time now);
  absl::Time NextStart() const;
  void SignalAll(int signal, StopsWith which);
  void AwaitAllGone(absl::Time deadline, StopsWith which);
  std::string LogTail(const std::string& name) const;
  std::string Path(const std::string& name) const { return options_.folder + "/" + name; }

  const ClusterOptions options_;
  const int lock_;
  ClusterFile file_;
  std::vector<std::unique_ptr<Process>> processes_;
  std::vector<std::string> events_;
  bool stopped_ = false;
};

// Whether a cluster holds the folder, and its process id. NOT_FOUND, reason CLUSTER_NOT_FOUND, while it starts.
absl::StatusOr<std::optional<int64_t>> RunningCluster(const std::string& folder);

}  // namespace atl::client
