// The leader's calls to the coordinator. All calls are idempotent and retried with backoff while the coordinator is
// unreachable; an island outlives its coordinator.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "atoll/island/v1/island_service.grpc.pb.h"
#include "common/base/backoff.h"
#include "common/base/clock.h"
#include "common/spec/task.h"
#include "grpcpp/security/credentials.h"
#include "worker/attempt/attempt_end.h"
#include "worker/attempt/worker_metrics.h"

namespace atl::worker {

// The pause between two tries of a call to the coordinator.
constexpr BackoffLimits kCoordinatorBackoff{.first = absl::Milliseconds(200), .longest = absl::Seconds(5)};

// Returns whether to retry a call that failed with `status`. An unreachable, slow or busy coordinator is retried
// without limit. If it accepted the island's credential before (`let_in`) and now rejects it, the call is retried for
// five minutes, of which `shut_out` have passed, because a token may be replaced a moment late. A revoked token is not
// retried.
bool IsTriedAgain(const absl::Status& status, bool let_in, absl::Duration shut_out);

struct CoordinatorOptions {
  std::string address;  // "host:port"
  std::string island_id;
  std::shared_ptr<grpc::ChannelCredentials> credentials;  // null: in the clear
  // Called once if the coordinator does not answer: returns a cause in the connection that gRPC does not report, or OK.
  // May be null. It may block for a moment.
  std::function<absl::Status()> explain;
};

struct Registration {
  int64_t incarnation = 0;
  absl::Duration heartbeat_interval;
  std::string epoch_uri;  // of the coordinator's blob store; empty: not given
};

struct Claim {
  std::optional<atlpb::island::v1::TaskGrant> grant;
  std::vector<std::string> unmet;  // why each waiting task does not fit
};

// Thread-safe; calls block. Drain cancels registering and claiming, Stop every call, running or later, with CANCELLED.
class CoordinatorClient {
 public:
  CoordinatorClient(CoordinatorOptions options, Clock* clock, WorkerMetrics* metrics);

  // Sets the incarnation of later calls. A repetition with the same `request_id` returns the same registration.
  absl::StatusOr<Registration> Register(const atlpb::island::v1::Capabilities& capabilities,
                                        const std::string& request_id);
  absl::StatusOr<Claim> ClaimTask(absl::Duration wait);
  absl::Status Commit(const spec::LeaseToken& token, const spec::CommittedCheckpoint& checkpoint);
  // Stops retrying commits of `token`; one that waits for its next try ends with its last error.
  void GiveUpCommits(const spec::LeaseToken& token);
  absl::Status Complete(const spec::LeaseToken& token, const std::vector<spec::Artifact>& outputs,
                        const spec::Progress& progress);
  // `permanent`: the same input would fail again.
  absl::Status Fail(const spec::LeaseToken& token, const absl::Status& error, bool permanent);
  // `store_failed`: the blob store was the cause, not the task.
  absl::Status Release(const spec::LeaseToken& token, const std::string& reason, bool store_failed);
  // Returns the rollback; unset if the task has diverged too often and has FAILED.
  absl::StatusOr<std::optional<atlpb::job::v1::Rollback>> RollBack(const spec::LeaseToken& token,
                                                                   const Rollback& rollback);

  // Returns new keys for a held task. Tried once.
  absl::StatusOr<spec::StorageGrant> RenewStorage(const spec::LeaseToken& token);

  // Volatile: tried once. `step_time`: of the running task; zero if unknown.
  absl::StatusOr<atlpb::island::v1::HeartbeatResponse> Heartbeat(int64_t sequence,
                                                                 const std::vector<spec::LeaseToken>& leases,
                                                                 absl::Duration step_time);
  absl::Status ReportProgress(const spec::LeaseToken& token, int64_t sequence, const spec::Progress& progress);

  void Drain();
  // Stops all retries: each later call is tried once.
  void Hurry();
  void Stop();
  int64_t incarnation() const;
  // Applies IsTriedAgain to a call that failed just now.
  bool TriesAgain(const absl::Status& status) const;

 private:
  using Stub = atlpb::island::v1::IslandService::Stub;
  using UnaryCall = std::function<grpc::Status(grpc::ClientContext*)>;
  enum class Until : uint8_t { kDrain, kStop };  // which of the two cancels a call

  // Binds `method` to arguments that outlive the call.
  template <typename Request, typename Response>
  UnaryCall CallOf(grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&, Response*),
                   const Request& request, Response* response) {
    return [this, method, &request, response](grpc::ClientContext* context) {
      return (stub_.get()->*method)(context, request, response);
    };
  }
  // Retries until the call succeeds, fails for good, `until` cancels it, or GiveUpCommits is called for `committing`
  // (null: not a commit).
  absl::Status Retry(const char* what, const UnaryCall& call, absl::Duration timeout, Until until,
                     const spec::LeaseToken* committing = nullptr);
  // Tries once, between failpoints.
  absl::Status Try(const char* what, const UnaryCall& call, absl::Duration timeout, Until until);
  absl::Status Once(const UnaryCall& call, absl::Duration timeout, Until until);

  const CoordinatorOptions options_;
  Clock* const clock_;
  WorkerMetrics* const metrics_;
  const std::unique_ptr<Stub> stub_;

  mutable absl::Mutex mutex_;
  int64_t incarnation_ ABSL_GUARDED_BY(mutex_) = 0;
  bool drained_ ABSL_GUARDED_BY(mutex_) = false;
  bool hurried_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
  spec::LeaseToken given_up_ ABSL_GUARDED_BY(mutex_);  // its commits are not retried
  bool let_in_ ABSL_GUARDED_BY(mutex_) = false;        // the coordinator accepted the credential once
  // When the coordinator first rejected the credential; unset if it accepted it last time.
  std::optional<absl::Duration> shut_out_since_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::pair<grpc::ClientContext*, Until>> running_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace atl::worker
