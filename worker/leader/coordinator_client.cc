#include "worker/leader/coordinator_client.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include "common/base/errors.h"
#include "common/base/failpoint.h"
#include "common/base/status_macros.h"
#include "common/rpc/channel.h"
#include "common/wire/status.h"
#include "common/wire/task_wire.h"
#include "common/wire/time_wire.h"

namespace atl::worker {

namespace pb = atlpb::island::v1;

namespace {

constexpr absl::Duration kCallTimeout = absl::Seconds(5);

// That the coordinator may take to make the keys of a grant, beside the call.
constexpr absl::Duration kGrantTime = absl::Seconds(5);

// Time for an operator to renew the island's token.
constexpr absl::Duration kLateToken = absl::Minutes(5);

}  // namespace

bool IsTriedAgain(const absl::Status& status, bool let_in, absl::Duration shut_out) {
  if (absl::IsUnauthenticated(status)) {
    return let_in && ErrorReason(status) != "TOKEN_REVOKED" && shut_out < kLateToken;
  }
  return rpc::IsRetryable(status) || absl::IsDeadlineExceeded(status) || absl::IsResourceExhausted(status);
}

CoordinatorClient::CoordinatorClient(CoordinatorOptions options, Clock* clock, WorkerMetrics* metrics)
    : options_(std::move(options)),
      clock_(clock),
      metrics_(metrics),
      stub_(pb::IslandService::NewStub(rpc::MakeChannel(options_.address, options_.credentials))) {}

absl::Status CoordinatorClient::Once(const UnaryCall& call, absl::Duration timeout, Until until) {
  grpc::ClientContext context;
  rpc::SetTimeout(&context, timeout);
  const std::pair<grpc::ClientContext*, Until> entry(&context, until);
  {
    absl::MutexLock lock(&mutex_);
    if (stopped_ || (drained_ && until == Until::kDrain)) return absl::CancelledError("the process ends");
    running_.push_back(entry);
  }
  const absl::Status status = rpc::FromGrpc(call(&context));
  if (!status.ok()) metrics_->coordinator_errors->Increment();
  absl::MutexLock lock(&mutex_);
  running_.erase(std::find(running_.begin(), running_.end(), entry));
  if (status.ok()) {
    let_in_ = true;
    shut_out_since_.reset();
  } else if (absl::IsUnauthenticated(status) && !shut_out_since_.has_value()) {
    shut_out_since_ = clock_->Monotonic();
  }
  return status;
}

absl::Status CoordinatorClient::Try(const char* what, const UnaryCall& call, absl::Duration timeout, Until until) {
  ATOLL_RETURN_IF_ERROR(Failpoint(fmt::format("{}.before_call", what)));
  ATOLL_RETURN_IF_ERROR(Once(call, timeout, until));
  // An error here stands for an answer that was lost.
  return Failpoint(fmt::format("{}.after_call", what));
}

bool CoordinatorClient::TriesAgain(const absl::Status& status) const {
  absl::MutexLock lock(&mutex_);
  const absl::Duration now = clock_->Monotonic();
  return IsTriedAgain(status, let_in_, now - shut_out_since_.value_or(now));
}

absl::Status CoordinatorClient::Retry(const char* what, const UnaryCall& call, absl::Duration timeout, Until until,
                                      const spec::LeaseToken* committing) {
  Backoff backoff(kCoordinatorBackoff);
  for (;;) {
    const absl::Status status = Try(what, call, timeout, until);
    if (status.ok()) {
      if (backoff.failures() > 0) {
        spdlog::info("{}: the coordinator answers again after {} failed calls", what, backoff.failures());
      }
      return status;
    }
    if (!TriesAgain(status)) return status;
    if (backoff.failures() == 0) {
      const absl::Status why = rpc::IsRetryable(status) && options_.explain ? options_.explain() : absl::OkStatus();
      spdlog::warn("{}: {}; trying on", what, (why.ok() ? status : why).ToString());
    }
    absl::MutexLock lock(&mutex_);
    const auto ended = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      const bool given_up = committing != nullptr && *committing == given_up_;
      return stopped_ || hurried_ || given_up || (drained_ && until == Until::kDrain);
    };
    clock_->AwaitUntil(&mutex_, absl::Condition(&ended), clock_->Monotonic() + backoff.Next());
    if (committing != nullptr && *committing == given_up_) return status;
    if (hurried_ && until == Until::kStop) return status;
  }
}

absl::StatusOr<Registration> CoordinatorClient::Register(const pb::Capabilities& capabilities,
                                                         const std::string& request_id) {
  pb::RegisterIslandRequest request;
  request.set_island_id(options_.island_id);
  *request.mutable_capabilities() = capabilities;
  request.set_request_id(request_id);
  pb::RegisterIslandResponse response;
  const absl::Status status =
      Retry("register", CallOf(&Stub::RegisterIsland, request, &response), kCallTimeout, Until::kDrain);
  if (!status.ok()) return status;
  absl::MutexLock lock(&mutex_);
  incarnation_ = response.incarnation();
  return Registration{.incarnation = response.incarnation(),
                      .heartbeat_interval = wire::FromProto(response.heartbeat_interval()),
                      .epoch_uri = response.epoch_uri()};
}

absl::StatusOr<Claim> CoordinatorClient::ClaimTask(absl::Duration wait) {
  pb::ClaimTaskRequest request;
  request.set_island_id(options_.island_id);
  request.set_incarnation(incarnation());
  *request.mutable_wait() = wire::ToProto(wait);
  pb::ClaimTaskResponse response;
  const absl::Status status =
      Retry("claim", CallOf(&Stub::ClaimTask, request, &response), kCallTimeout + wait + kGrantTime, Until::kDrain);
  if (!status.ok()) return status;
  Claim claim;
  if (response.has_grant()) claim.grant = std::move(*response.mutable_grant());
  claim.unmet.assign(response.unmet().begin(), response.unmet().end());
  return claim;
}

absl::Status CoordinatorClient::Commit(const spec::LeaseToken& token, const spec::CommittedCheckpoint& checkpoint) {
  pb::CommitCheckpointRequest request;
  *request.mutable_token() = wire::ToProto(token);
  *request.mutable_checkpoint() = wire::ToProto(checkpoint);
  pb::CommitCheckpointResponse response;
  return Retry("commit", CallOf(&Stub::CommitCheckpoint, request, &response), kCallTimeout, Until::kStop, &token);
}

void CoordinatorClient::GiveUpCommits(const spec::LeaseToken& token) {
  absl::MutexLock lock(&mutex_);
  given_up_ = token;
}

absl::Status CoordinatorClient::Complete(const spec::LeaseToken& token, const std::vector<spec::Artifact>& outputs,
                                         const spec::Progress& progress) {
  pb::CompleteTaskRequest request;
  *request.mutable_token() = wire::ToProto(token);
  for (const spec::Artifact& output : outputs) *request.add_outputs() = wire::ToProto(output);
  *request.mutable_progress() = wire::ToProto(progress);
  pb::CompleteTaskResponse response;
  return Retry("complete", CallOf(&Stub::CompleteTask, request, &response), kCallTimeout, Until::kStop);
}

absl::Status CoordinatorClient::Fail(const spec::LeaseToken& token, const absl::Status& error, bool permanent) {
  pb::FailTaskRequest request;
  *request.mutable_token() = wire::ToProto(token);
  request.set_code(absl::StatusCodeToString(error.code()));
  request.set_message(std::string(error.message()));
  request.set_permanent(permanent);
  pb::FailTaskResponse response;
  return Retry("fail", CallOf(&Stub::FailTask, request, &response), kCallTimeout, Until::kStop);
}

absl::Status CoordinatorClient::Release(const spec::LeaseToken& token, const std::string& reason, bool store_failed) {
  pb::ReleaseTaskRequest request;
  *request.mutable_token() = wire::ToProto(token);
  request.set_reason(reason);
  request.set_store_failed(store_failed);
  pb::ReleaseTaskResponse response;
  return Retry("release", CallOf(&Stub::ReleaseTask, request, &response), kCallTimeout, Until::kStop);
}

absl::StatusOr<std::optional<atlpb::job::v1::Rollback>> CoordinatorClient::RollBack(const spec::LeaseToken& token,
                                                                                    const Rollback& rollback) {
  pb::RollbackTaskRequest request;
  *request.mutable_token() = wire::ToProto(token);
  request.set_before_step(rollback.before_step);
  request.set_through_step(rollback.through_step);
  request.set_reason(rollback.reason);
  request.set_message(rollback.message);
  request.set_evidence_uri(rollback.evidence_uri);
  pb::RollbackTaskResponse response;
  const absl::Status status =
      Retry("rollback", CallOf(&Stub::RollbackTask, request, &response), kCallTimeout, Until::kStop);
  if (!status.ok()) return status;
  std::optional<atlpb::job::v1::Rollback> done;
  if (response.has_rollback()) done = response.rollback();
  return done;
}

absl::StatusOr<spec::StorageGrant> CoordinatorClient::RenewStorage(const spec::LeaseToken& token) {
  pb::RenewStorageRequest request;
  *request.mutable_token() = wire::ToProto(token);
  pb::RenewStorageResponse response;
  ATOLL_RETURN_IF_ERROR(Once(CallOf(&Stub::RenewStorage, request, &response), kCallTimeout + kGrantTime, Until::kStop));
  return wire::FromProto(response.storage());
}

absl::StatusOr<pb::HeartbeatResponse> CoordinatorClient::Heartbeat(int64_t sequence,
                                                                   const std::vector<spec::LeaseToken>& leases,
                                                                   absl::Duration step_time) {
  pb::HeartbeatRequest request;
  request.set_island_id(options_.island_id);
  request.set_incarnation(incarnation());
  request.set_sequence(sequence);
  for (const spec::LeaseToken& lease : leases) *request.add_leases() = wire::ToProto(lease);
  request.set_step_seconds(absl::ToDoubleSeconds(step_time));
  pb::HeartbeatResponse response;
  ATOLL_RETURN_IF_ERROR(Once(CallOf(&Stub::Heartbeat, request, &response), kCallTimeout, Until::kStop));
  return response;
}

absl::Status CoordinatorClient::ReportProgress(const spec::LeaseToken& token, int64_t sequence,
                                               const spec::Progress& progress) {
  pb::ReportProgressRequest request;
  *request.mutable_token() = wire::ToProto(token);
  request.set_sequence(sequence);
  *request.mutable_progress() = wire::ToProto(progress);
  pb::ReportProgressResponse response;
  return Once(CallOf(&Stub::ReportProgress, request, &response), kCallTimeout, Until::kStop);
}

void CoordinatorClient::Drain() {
  absl::MutexLock lock(&mutex_);
  drained_ = true;
  for (const auto& [context, until] : running_) {
    if (until == Until::kDrain) context->TryCancel();
  }
}

void CoordinatorClient::Hurry() {
  absl::MutexLock lock(&mutex_);
  hurried_ = true;
}

void CoordinatorClient::Stop() {
  absl::MutexLock lock(&mutex_);
  stopped_ = true;
  for (const auto& [context, until] : running_) context->TryCancel();
}

int64_t CoordinatorClient::incarnation() const {
  absl::MutexLock lock(&mutex_);
  return incarnation_;
}

}  // namespace atl::worker
