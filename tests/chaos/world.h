// The cluster that is broken: a coordinator, a router and islands, on machines of their own (network.h), with the
// faults of a schedule. A supervisor starts again what ends.
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
  // Each rank on a machine of its own, which shared memory must not cross: UCX signals through sockets that know no
  // other network namespace. Else all ranks of an island are on one.
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
  // Of every leader, of all its lives.
  std::vector<std::string> LeaderLogs() const;

  absl::Status Begin(const Fault& fault);
  absl::Status End(const Fault& fault);
  // Starts again what ended a while ago. Returns what ended by itself since the last call: "island-0/1 ended with 1".
  std::vector<std::string> Supervise();
  // SIGTERM to everything but the coordinator, then to the coordinator; what does not end in time is named.
  std::vector<std::string> Stop(absl::Duration patience);

 private:
  struct Node {
    std::unique_ptr<testing_cluster::Process> process;
    absl::Time ended = absl::InfiniteFuture();  // when its end was seen
    bool killed = false;                        // by a fault
  };

  explicit World(WorldOptions options, Network network);
  absl::Status Prepare();
  // The flags of `wanted` that a program knows: programs of other builds may be broken too.
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
