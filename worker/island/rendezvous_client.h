// A rank's side of the rendezvous: keeps one Join stream to the leader, sends heartbeats on it, passes the leader's
// commands to the rank's runner and the runner's reports to the leader. If the leader is lost, aborts the attempt at
// once and joins again.
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
  std::vector<RankDevice> devices;  // the rank's candidates
  absl::Duration beat_interval = absl::Milliseconds(300);
  absl::Duration silence_timeout = absl::Seconds(2);
  absl::Duration retry_delay = absl::Milliseconds(250);
  // How long an aborted attempt may take to end, including the checkpoints that it still writes. After this the process
  // must end.
  absl::Duration hung_timeout = absl::Minutes(2);
  // Called then, on Run's thread, with the reason. The handler should end the process, because the compute thread
  // cannot be joined.
  std::function<void(const absl::Status&)> hung;
};

// Thread-safe. Starts no thread: Run is the rank's link thread; gRPC's threads only queue for it.
class RendezvousClient {
 public:
  RendezvousClient(RendezvousOptions options, Clock* clock, WorkerMetrics* metrics);
  ~RendezvousClient();

  // Joins, again and again, until Stop or the leader's Shutdown, then returns OK. Returns an error if the leader
  // rejects this rank permanently: wrong secret, wrong build, rank out of range, no device for it alone. Returns
  // ABORTED (ISLAND_ENDED) if the leader ended with an error and Stop was not called, and DEADLINE_EXCEEDED (RANK_HUNG)
  // if an aborted attempt does not end.
  absl::Status Run(RankRunner* runner);
  // Sends a report of the runner; drops it if there is no stream. Never blocks.
  void Send(atlpb::island::v1::JoinRequest message);
  // Asks the leader to stop the attempt, because the process should end. Run returns when the attempt has ended, at the
  // deadline at the latest. A further call with another deadline asks again.
  void Stop(StopRequest request);

 private:
  class Call;

  absl::Status ServeOnce(RankRunner* runner);
  absl::Status Serve(Call* call, RankRunner* runner);
  // Waits for an event until `next_beat`, sends all due messages, and returns the received ones.
  std::deque<atlpb::island::v1::JoinResponse> Exchange(Call* call, const RankRunner& runner, absl::Duration* next_beat);
  void SendBeat(const std::optional<RankRunner::OverdueAttempt>& overdue) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool StopDue(Call* call, RankRunner* runner);
  // Call it once StopDue is true. Returns OK, or why the island ended.
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
  int64_t sequence_ = 0;  // used by Run's thread only
};

}  // namespace atl::worker
