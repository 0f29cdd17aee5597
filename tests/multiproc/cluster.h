// A whole cluster of real processes in a temporary folder: a coordinator and islands, on ports of their own choice.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "atoll/job/v1/job_service.grpc.pb.h"
#include "common/formats/checkpoint.h"
#include "common/spec/spec.h"
#include "common/storage/blob_store.h"
#include "grpcpp/security/credentials.h"
#include "tests/multiproc/process.h"

namespace atl::testing_cluster {

struct ClusterOptions {
  int islands = 1;
  int ranks = 2;
  std::vector<std::string> coordinator_flags;
  std::vector<std::string> worker_flags;
  std::vector<std::string> worker_environment;  // "NAME=value", of every rank's first start
  std::string blob_store;                       // empty: a folder of the cluster's own
  // Map addresses for an island, to put a proxy in between: the coordinator's, and the leader's as the other ranks use
  // it. Empty: unchanged.
  std::function<std::string(int island, const std::string& address)> coordinator_of;
  std::function<std::string(int island, const std::string& address)> leader_of;
  std::vector<std::string> router_flags;
  // For the harness's own calls; null: plain text.
  std::shared_ptr<grpc::ChannelCredentials> credentials;
};

// A failing step of the harness itself is a fatal error of the test process, with its reason. If the test failed, logs
// stay in the folder, and their last lines are printed.
class Cluster {
 public:
  explicit Cluster(ClusterOptions options);
  ~Cluster();

  const std::string& folder() const { return folder_; }
  const std::string& coordinator_address() const { return coordinator_address_; }
  storage::BlobStore* store() { return store_.get(); }
  atlpb::job::v1::JobService::Stub* jobs() { return jobs_.get(); }

  Process& coordinator() { return *coordinator_; }
  Process& rank(int island, int rank) { return *ranks_[island][rank]; }
  // Starts the same process again, at the same address, with the same state; kills the previous one. `environment`:
  // "NAME=value", for this start only. Waits until it serves or, when restarted, has ended.
  void StartCoordinator(const std::vector<std::string>& environment = {});
  void StartRank(int island, int rank, const std::vector<std::string>& environment = {});
  void StartIsland(int island);
  void KillIsland(int island);
  // Starts a router that serves the coordinator's choice; returns its address. The program must have been built.
  std::string StartRouter();

  // 8x8 grey images of ten classes in `shards` shards of 64, named "patterns".
  void WriteDataset(int shards = 2);

  std::string Submit(const spec::JobSpec& spec);
  // Waits for an unreachable coordinator.
  atlpb::job::v1::Job GetJob(const std::string& job_id);
  // Polls until `condition` holds for the job; false after `timeout`, or as soon as the job has failed.
  bool AwaitJob(const std::string& job_id, absl::Duration timeout,
                const std::function<bool(const atlpb::job::v1::Job&)>& condition);
  bool AwaitSuccess(const std::string& job_id, absl::Duration timeout);

  // Returns the final checkpoint of an expert of a job that has succeeded.
  storage::CheckpointReader FinalCheckpoint(const std::string& job_id, int expert);
  // Returns the ends of all logs.
  std::string Logs();

 private:
  std::vector<std::string> RankCommand(int island, int rank) const;

  const ClusterOptions options_;
  std::string folder_;
  std::string blob_store_;
  std::string coordinator_address_;
  std::vector<std::string> leaders_;  // address of each island's leader
  std::unique_ptr<storage::BlobStore> store_;
  std::unique_ptr<atlpb::job::v1::JobService::Stub> jobs_;
  std::unique_ptr<Process> coordinator_;
  std::vector<std::vector<std::unique_ptr<Process>>> ranks_;
  std::unique_ptr<Process> router_;
};

// Returns the path of a program of the build; it must have been built.
std::string Program(const std::string& name);

// Returns the task of an expert (or of the router network) in a job.
const atlpb::job::v1::Task& TaskOf(const atlpb::job::v1::Job& job, atlpb::job::v1::TaskKind kind, int index = 0);

// A job over "patterns" that trains small models quickly: 2 experts of 3 blocks, batches of 8.
spec::JobSpec SmallJob(int experts, int steps, int checkpoint_every);

// The same with one expert whose step takes some tens of milliseconds, so that it can be interrupted.
spec::JobSpec MediumJob(int steps, int checkpoint_every);

// Returns "" when both hold the same tensors bit for bit, else the first difference.
std::string TensorDifference(const storage::CheckpointReader& a, const storage::CheckpointReader& b);

}  // namespace atl::testing_cluster
