// A rank's side of the rendezvous: keeps one Join stream to the leader, beats on it, hands the leader's commands to the
// rank's runner and the runner's reports to the leader. When the leader is lost the attempt is aborted at once, and the
// rank joins again.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "atoll/island/v1/rendezvous_service.grpc.pb.h"
#include "common/base/clock.h"
#include "grpcpp/security/credentials.h"
#include "worker/attempt/rank_runner.h"
#include "worker/attempt/stop_plan.h"
#include "worker/attempt/worker_metrics.h"
#include "worker/island/rank_device.h"

namespace atl::worker {

struct RendezvousOptions {
  std::string leader;                                     // "host:port"
  std::shared_ptr<grpc::ChannelCredentials> credentials;  // null: in the clear
  int32_t rank = 1;
  std::string secret;
  std::string build;
  std::string where;                // for messages: host and process id
  std::vector<RankDevice> devices;  // that the rank may have
  absl::Duration beat_interval = absl::Milliseconds(300);
  absl::Duration silence_timeout = absl::Seconds(2);
  absl::Duration retry_delay = absl::Milliseconds(250);
  // How long an aborted attempt may take to end, with the checkpoints that it still writes; after this the process is
  // of no use any more.
  absl::Duration hung_timeout = absl::Minutes(2);
  // Called then, on Run's thread, with why. It should end the process: the compute thread cannot be joined.
  std::function<void(const absl::Status&)> hung;
};

// Thread-safe. Starts no thread: Run is the rank's link thread; gRPC's threads only queue for it.
class RendezvousClient {
 public:
  RendezvousClient(RendezvousOptions options, Clock* clock, WorkerMetrics* metrics);
  ~RendezvousClient();

  // Joins, again and again, until Stop or the leader's Shutdown: then OK. An error when the leader refuses this rank
  // for good: wrong secret, wrong build, rank out of range, no device for it alone; ABORTED (ISLAND_ENDED) when the
  // leader ended with an error and Stop was not called; DEADLINE_EXCEEDED (RANK_HUNG) when an aborted attempt does not
  // end.
  absl::Status Run(RankRunner* runner);
  // What the runner reports; dropped while no stream is there. Never blocks.
  void Send(atlpb::island::v1::JoinRequest message);
  // The process should end: asks the leader to stop the attempt, and Run returns once it has ended, at the deadline
  // whether or not. Again, with another deadline: asks again.
  void Stop(StopRequest request);

 private:
  class Call;

  absl::Status ServeOnce(RankRunner* runner);
  absl::Status Serve(Call* call, RankRunner* runner);
  // Waits for something to do, until `next_beat`; sends what is due; what the leader said.
  std::deque<atlpb::island::v1::JoinResponse> Exchange(Call* call, const RankRunner& runner, absl::Duration* next_beat);
  void SendBeat(const std::optional<RankRunner::OverdueAttempt>& overdue) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool StopDue(Call* call, RankRunner* runner);
  // Once StopDue: OK, or why the island ended.
  absl::Status HowItEnded();

  const RendezvousOptions options_;
  Clock* const clock_;
  WorkerMetrics* const metrics_;
  const std::unique_ptr<atlpb::island::v1::RendezvousService::Stub> stub_;

  absl::Mutex mutex_;
  std::deque<atlpb::island::v1::JoinRequest> outgoing_ ABSL_GUARDED_BY(mutex_);
  bool joined_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  bool leave_due_ ABSL_GUARDED_BY(mutex_) = false;
  std::optional<atlpb::island::v1::Shutdown> shut_down_ ABSL_GUARDED_BY(mutex_);
  StopRequest stop_ ABSL_GUARDED_BY(mutex_);
  int64_t sequence_ = 0;  // Run's thread only
};

}  // namespace atl::worker
