// An island without ranks: claims tasks from a real coordinator and finishes each with made-up results, across every
// restart of the coordinator. Records the acknowledged calls.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "atoll/island/v1/island_service.grpc.pb.h"
#include "common/rpc/channel.h"
#include "common/wire/status.h"

namespace atl::multiproc {

// Repeats `call` while the coordinator is unreachable, at its current address; returns the first other status, or
// UNAVAILABLE once `patience` is over. `call` gets a fresh channel for each try.
absl::Status CallWithRetry(const std::function<std::string()>& address, absl::Duration patience,
                           const std::function<absl::Status(const std::shared_ptr<grpc::Channel>&)>& call);

class FakeIsland {
 public:
  struct Acknowledged {
    std::map<std::string, int64_t> attempts;  // by task: of the last grant
    std::set<std::string> secrets;            // of every attempt
    std::map<std::string, std::set<int64_t>> committed_steps;
    std::map<std::string, std::string> completed;  // by task: SHA-256 of its output
  };

  // `address` is called before every try. Starts a thread, joined by Stop.
  FakeIsland(std::string island_id, std::string blob_root, std::function<std::string()> address);
  ~FakeIsland();

  // Holds every training task before its first commit, with heartbeats, until called with false.
  void HoldTraining(bool hold) { hold_training_ = hold; }
  bool training() const { return training_; }
  // Claims again when its attempt was revoked, which is a complaint otherwise.
  void ClaimAgainWhenStale() { claims_again_ = true; }
  void Stop();

  Acknowledged acknowledged() const;
  // Returns the first answer that no island should get; empty without one.
  std::string complaint() const;

 private:
  void Run();
  absl::Status Register();
  absl::Status ClaimAndWork();
  absl::Status Train(const atlpb::island::v1::TaskGrant& grant, std::string* manifest);
  absl::Status Heartbeat(const atlpb::island::v1::TaskGrant& grant);
  absl::Status Complete(const atlpb::island::v1::TaskGrant& grant, const std::string& name, const std::string& uri);
  absl::Status Call(
      const std::function<grpc::Status(atlpb::island::v1::IslandService::Stub&, grpc::ClientContext*)>& call,
      absl::Duration timeout = absl::Seconds(5));

  const std::string island_id_;
  const std::string blob_root_;
  const std::function<std::string()> address_;
  std::atomic<bool> stopping_{false};
  std::atomic<bool> hold_training_{false};
  std::atomic<bool> training_{false};
  std::atomic<bool> claims_again_{false};
  int64_t incarnation_ = 0;
  int64_t sequence_ = 0;
  mutable absl::Mutex mutex_;
  Acknowledged acknowledged_ ABSL_GUARDED_BY(mutex_);
  std::string complaint_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace atl::multiproc
