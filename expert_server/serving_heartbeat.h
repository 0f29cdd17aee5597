// An expert server's side of the coordinator's registry: reports the networks that this process hosts and receives the
// ones to host.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "atoll/serving/v1/serving_service.grpc.pb.h"
#include "common/base/clock.h"
#include "expert_server/hosting_keeper.h"
#include "grpcpp/security/credentials.h"

namespace atl::worker {

// The times and outcomes of the heartbeats so far; times are of the monotonic clock.
struct HeartbeatTimes {
  absl::Duration last_start = -absl::InfiniteDuration();  // of the newest call
  absl::Duration last_end = -absl::InfiniteDuration();
  int failures = 0;      // calls without an answer, in a row
  double jitter = 0;     // in [0, 1), drawn anew for each call
  bool changed = false;  // whether the hosted networks changed since the newest call started
};

// Returns when the next call starts. Pure. Without failures the next call starts one interval after the last one's
// start, or, if the hosting changed, at most 100 ms after it. After a failure it starts BackoffDelay later, at most one
// interval.
absl::Duration NextHeartbeat(const HeartbeatTimes& times, absl::Duration interval);

// Returns the address that routers dial: `advertise` ("HOST" or "HOST:PORT"; port 0 or none: the bound one), or else
// the host of `listen`. Returns INVALID_ARGUMENT with reason ADVERTISED_ADDRESS_REQUIRED if that host is a wildcard,
// which a router cannot dial, and INVALID_ADDRESS if it is malformed.
absl::StatusOr<std::string> AdvertisedAddress(const std::string& listen, const std::string& advertise, int bound_port);

struct ServingHeartbeatOptions {
  std::string coordinator;  // "host:port"
  std::string server_id;
  std::shared_ptr<grpc::ChannelCredentials> credentials;  // null: in the clear
  std::string address;                                    // at which routers reach this process
  absl::Duration interval = absl::Seconds(2);             // until the coordinator sends another one
};

// Thread-safe. Owns one thread, joined by the destructor. While the coordinator is unreachable, the hosted networks
// stay; its first answer sends the assignment again.
class ServingHeartbeat {
 public:
  // All are called on the heartbeat's thread, never under a lock, and must not block.
  struct Calls {
    std::function<atlpb::expert::v1::ListNetworksResponse()> hosting;
    // Receives all networks to host from now on.
    std::function<void(std::vector<AssignedNetwork>)> assign;
    // Called once if another process has replaced this one: ABORTED with reason STALE_INCARNATION. No call to the
    // coordinator follows.
    std::function<void(const absl::Status&)> superseded;
    // Called after every call to the coordinator; may be empty.
    std::function<void(const absl::Status&)> answered;
  };

  // `clock` must outlive it.
  ServingHeartbeat(ServingHeartbeatOptions options, Calls calls, Clock* clock);
  ~ServingHeartbeat();
  ServingHeartbeat(const ServingHeartbeat&) = delete;
  ServingHeartbeat& operator=(const ServingHeartbeat&) = delete;

  // Starts the thread, which sends the first heartbeat at once. Call it once.
  void Start();
  // Requests a heartbeat soon, because the answer of `hosting` has changed. Never blocks.
  void HostingChanged();
  // Reports to the coordinator that this process ends, if the coordinator answers in time. Blocks until then, and no
  // callback runs afterwards. Safe to call twice.
  void Leave();
  // Like Leave, but sends no report.
  void Stop();

 private:
  enum class Next { kBeat, kLeave, kEnd };

  void Run();
  Next AwaitNext();
  // Returns false if another process has replaced this one.
  bool Beat(bool leaving);
  // Sends one heartbeat and returns its answer.
  absl::StatusOr<atlpb::serving::v1::HeartbeatResponse> Call(bool leaving);
  void End(bool leave);

  const ServingHeartbeatOptions options_;
  const Calls calls_;
  Clock* const clock_;
  const std::unique_ptr<atlpb::serving::v1::ServingService::Stub> stub_;
  const std::string incarnation_;

  int64_t sequence_ = 0;  // touched by the thread only

  absl::Mutex mutex_;
  HeartbeatTimes times_ ABSL_GUARDED_BY(mutex_);
  absl::Duration interval_ ABSL_GUARDED_BY(mutex_);
  grpc::ClientContext* running_ ABSL_GUARDED_BY(mutex_) = nullptr;
  bool leave_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  bool ended_ ABSL_GUARDED_BY(mutex_) = true;  // the thread calls nothing any more, or has not started
  std::thread thread_;
};

}  // namespace atl::worker
