// An expert server's side of the coordinator's registry: says what this process hosts, and learns what it is to host.
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

// What is known of the heartbeats so far; times are of the monotonic clock.
struct HeartbeatTimes {
  absl::Duration last_start = -absl::InfiniteDuration();  // of the newest call
  absl::Duration last_end = -absl::InfiniteDuration();
  int failures = 0;      // calls without an answer, in a row
  double jitter = 0;     // in [0, 1), drawn anew for each call
  bool changed = false;  // what is hosted, since the newest call started
};

// When the next call starts. Pure. Without failures an interval after the one before, or at once when something has
// changed, though never more than one call in 100 ms. While the coordinator is away BackoffDelay after the last
// failure, at most an interval: it hears no more of a server than it always does.
absl::Duration NextHeartbeat(const HeartbeatTimes& times, absl::Duration interval);

// The address that routers are told: `advertise` ("HOST" or "HOST:PORT"; port 0 or none: the bound one), else the host
// of `listen`. INVALID_ARGUMENT with reason ADVERTISED_ADDRESS_REQUIRED where that is a wildcard, which nobody can
// dial, and INVALID_ADDRESS.
absl::StatusOr<std::string> AdvertisedAddress(const std::string& listen, const std::string& advertise, int bound_port);

struct ServingHeartbeatOptions {
  std::string coordinator;  // "host:port"
  std::string server_id;
  std::shared_ptr<grpc::ChannelCredentials> credentials;  // null: in the clear
  std::string address;                                    // as routers reach this process
  absl::Duration interval = absl::Seconds(2);             // until the coordinator says another one
};

// Thread-safe. Owns one thread, joined by the destructor. A coordinator that is away changes nothing: what is hosted
// stays, and the first answer says what to host again.
class ServingHeartbeat {
 public:
  // All are called on the heartbeat's thread, never under a lock, and must not block.
  struct Calls {
    std::function<atlpb::expert::v1::ListNetworksResponse()> hosting;
    // All that is to be hosted from now on.
    std::function<void(std::vector<AssignedNetwork>)> assign;
    // Another process has taken the place of this one: ABORTED with reason STALE_INCARNATION. Once, and then no call to
    // the coordinator follows.
    std::function<void(const absl::Status&)> superseded;
    // After every call; may be empty.
    std::function<void(const absl::Status&)> answered;
  };

  // `clock` must outlive it.
  ServingHeartbeat(ServingHeartbeatOptions options, Calls calls, Clock* clock);
  ~ServingHeartbeat();
  ServingHeartbeat(const ServingHeartbeat&) = delete;
  ServingHeartbeat& operator=(const ServingHeartbeat&) = delete;

  // The first call follows at once. Once.
  void Start();
  // What `hosting` answers has changed: it is told soon. Never blocks.
  void HostingChanged();
  // Tells the coordinator that this process ends, if it answers in time. Afterwards nothing is called any more. Blocks
  // until then. Safe to call twice.
  void Leave();
  // The same without a word.
  void Stop();

 private:
  enum class Next { kBeat, kLeave, kEnd };

  void Run();
  Next AwaitNext();
  // False when another process has taken the place of this one.
  bool Beat(bool leaving);
  // One call; its answer.
  absl::StatusOr<atlpb::serving::v1::HeartbeatResponse> Call(bool leaving);
  void End(bool leave);

  const ServingHeartbeatOptions options_;
  const Calls calls_;
  Clock* const clock_;
  const std::unique_ptr<atlpb::serving::v1::ServingService::Stub> stub_;
  const std::string incarnation_;

  int64_t sequence_ = 0;  // of the thread alone

  absl::Mutex mutex_;
  HeartbeatTimes times_ ABSL_GUARDED_BY(mutex_);
  absl::Duration interval_ ABSL_GUARDED_BY(mutex_);
  grpc::ClientContext* running_ ABSL_GUARDED_BY(mutex_) = nullptr;
  bool leave_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  bool ended_ ABSL_GUARDED_BY(mutex_) = true;  // the thread calls nothing any more, or not yet
  std::thread thread_;
};

}  // namespace atl::worker
