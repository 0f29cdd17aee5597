// The cluster under test: a coordinator, a router and islands, on their own machines (network.h), with the faults of a
// schedule. A supervisor restarts processes that end.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/storage/blob_store.h"
#include "tests/chaos/network.h"
#include "tests/chaos/schedule.h"
#include "tests/multiproc/one_way_proxy.h"
#include "tests/multiproc/process.h"

namespace atl::chaos {

struct WorldOptions {
  std::string folder;    // of logs, blobs and everything else; must be there
  std::string programs;  // folder of atoll-coordinator, …
  int islands = 4;
  int ranks = 2;
  // Whether each rank has its own machine, across which shared memory must not be used: UCX signals through sockets
  // that exist only in one network namespace. Otherwise all ranks of an island share one.
  bool machine_per_rank = false;
  absl::Duration lease = absl::Seconds(3);
  int64_t store_disk_bytes = int64_t{16} << 20;
  absl::Duration restart_delay = absl::Seconds(1);
};

// For one thread, which must live as long as the cluster. Blocks on tools and signals, not on the cluster.
class World {
 public:
  static absl::StatusOr<std::unique_ptr<World>> Make(WorldOptions options);
  ~World();  // kills every process

  std::string coordinator_address() const { return addresses_.at("coordinator") + ":7000"; }
  std::string router_address() const { return addresses_.at("router") + ":7200"; }
  std::string store_path() const { return options_.folder + "/store/coordinator.db"; }
  storage::BlobStore* blobs() { return blobs_.get(); }
  // Returns the logs of every leader, from all its starts.
  std::vector<std::string> LeaderLogs() const;

  absl::Status Begin(const Fault& fault);
  absl::Status End(const Fault& fault);
  // Restarts processes that ended a while ago. Returns those that ended by themselves since the last call: "island-0/1
  // ended with 1".
  std::vector<std::string> Supervise();
  // Sends SIGTERM to everything but the coordinator, then to the coordinator; returns the processes that do not end in
  // time.
  std::vector<std::string> Stop(absl::Duration patience);

 private:
  struct Node {
    std::unique_ptr<testing_cluster::Process> process;
    absl::Time ended = absl::InfiniteFuture();  // when its end was seen
    bool killed = false;                        // by a fault
  };

  explicit World(WorldOptions options, Network network);
  absl::Status Prepare();
  // Returns the `wanted` flags that a program knows, because programs of other builds can be tested too.
  absl::StatusOr<std::vector<std::string>> KnownFlags(const std::string& program,
                                                      const std::vector<std::string>& wanted) const;
  std::string MachineOf(const std::string& node) const;
  std::vector<std::string> CommandOf(const std::string& node) const;
  void Start(const std::string& node);
  absl::Status FillDisk();

  const WorldOptions options_;
  Network network_;
  std::map<std::string, std::string> addresses_;  // by machine
  std::unique_ptr<storage::BlobStore> blobs_;
  std::map<std::string, std::vector<std::string>> network_flags_;  // by program
  // Between islands and coordinator.
  std::unique_ptr<testing_cluster::OneWayProxy> proxy_;
  std::map<std::string, Node> nodes_;
};

}  // namespace atl::chaos
