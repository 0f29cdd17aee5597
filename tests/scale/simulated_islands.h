// Thousands of islands in one process, each with its own connection. They send heartbeats, sometimes commit a
// checkpoint instead, and continue whatever happens to the coordinator.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <queue>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/time.h"
#include "atoll/island/v1/island_service.grpc.pb.h"
#include "common/spec/task.h"
#include "grpcpp/security/credentials.h"

namespace atl::scale {

struct IslandsOptions {
  // "host:port".
  std::string coordinator;
  // Null: in the clear.
  std::shared_ptr<grpc::ChannelCredentials> credentials;
  absl::Duration heartbeat_interval = absl::Seconds(2);
  // Each wait is longer or shorter by at most this share, at random.
  double jitter = 0.1;
  // Share of the calls that commit a checkpoint instead.
  double commit_share = 0.05;
  std::string blob_root;
  uint64_t seed = 1;
};

// The counts since the last Take, or since the start. Times in seconds.
struct Observed {
  std::vector<double> heartbeats;
  std::vector<double> commits;
  // How late this process started a call: delays of this process, not of the coordinator.
  double worst_lateness = 0;
  // The number of calls that no coordinator answered.
  int64_t unanswered = 0;
  // Leases that a coordinator reported as revoked, and calls that it rejected.
  int64_t revoked = 0;
  int64_t refused = 0;
  std::string first_refusal;
};

// Thread-safe.
class SimulatedIslands {
 public:
  // One island per token, with the names and incarnations of FillStore. Starts a thread.
  SimulatedIslands(const std::vector<spec::LeaseToken>& tokens, IslandsOptions options);
  ~SimulatedIslands();  // waits for calls under way, each of which ends within ten seconds

  Observed Take();
  // Islands whose last answered heartbeat or commit was sent after `time`.
  int64_t RenewedSince(absl::Time time) const;
  size_t size() const { return islands_.size(); }

 private:
  struct Island {
    std::unique_ptr<atlpb::island::v1::IslandService::Stub> stub;
    atlpb::island::v1::LeaseToken token;
    int64_t sequence = 0;
    int64_t step = 0;
    std::atomic<int64_t> renewed_nanos{0};  // when the last answered call was sent
  };
  struct Due {
    absl::Time time;
    size_t island = 0;
    bool operator<(const Due& other) const { return time > other.time; }  // the earliest first
  };
  struct HeartbeatCall;
  struct CommitCall;

  void Run();
  void Send(size_t island);
  void SendHeartbeat(size_t island);
  void SendCommit(size_t island);
  void Ended(size_t island, absl::Time sent, const grpc::Status& status, int64_t revoked,
             std::vector<double> Observed::*times);

  const IslandsOptions options_;
  std::vector<std::unique_ptr<Island>> islands_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::priority_queue<Due> due_;
  std::mt19937_64 random_;
  Observed observed_;
  int64_t running_ = 0;
  bool stopping_ = false;
  std::thread thread_;
};

// Returns the value below which that share of the values lies; 0 for no values. Sorts `values`.
double Quantile(std::vector<double>& values, double share);

}  // namespace atl::scale
