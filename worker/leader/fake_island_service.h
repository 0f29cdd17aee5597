// A coordinator for tests: grants configured tasks and records the requests.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "atoll/island/v1/island_service.grpc.pb.h"
#include "common/base/errors.h"
#include "common/wire/status.h"
#include "common/wire/task_wire.h"
#include "common/wire/time_wire.h"

namespace atl::worker {

class FakeIslandService final : public atlpb::island::v1::IslandService::Service {
 public:
  struct State {
    std::deque<spec::TaskGrant> to_grant;
    std::vector<spec::LeaseToken> granted;
    std::vector<int32_t> registered_ranks;
    std::vector<std::pair<int64_t, int64_t>> commits;  // attempt, step
    std::vector<spec::CommittedCheckpoint> committed;
    std::vector<spec::Artifact> outputs;
    std::vector<std::string> completed;
    std::vector<std::string> released;  // reasons
    std::vector<std::string> failed;    // "CODE permanent: message"
    std::vector<atlpb::island::v1::RollbackTaskRequest> rolled_back;
    std::vector<int64_t> progress;  // steps
    std::string revoke;             // reason in the answer to every heartbeat with a lease
    std::string stopping;           // likewise, to ask for the lease back
    std::string drain_reason;       // in the answer to every heartbeat
    int store_failures = 0;         // releases that blame the blob store
    int64_t beats = 0;              // heartbeats with a lease
    double step_seconds = 0;        // the newest reported
    int commits_to_refuse = 0;      // rejected with commit_refusal
    absl::Status commit_refusal = absl::UnavailableError("away");
    absl::Status heartbeat_refusal;  // OK: none
    int64_t incarnation = 7;
    bool knows_island = true;  // false: until it registers again, as after the loss of the store
    std::string epoch_uri;     // sent to every island that registers
  };

  // Blocks until `condition` of the state holds; false after 20 s.
  bool Await(const std::function<bool(const State&)>& condition) {
    absl::MutexLock lock(&mutex_);
    const auto holds = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return condition(state_); };
    return mutex_.AwaitWithTimeout(absl::Condition(&holds), absl::Seconds(20));
  }
  void Change(const std::function<void(State*)>& change) {
    absl::MutexLock lock(&mutex_);
    change(&state_);
  }
  State Copy() {
    absl::MutexLock lock(&mutex_);
    return state_;
  }

 private:
  using Context = grpc::ServerContext;

  grpc::Status RegisterIsland(Context*, const atlpb::island::v1::RegisterIslandRequest* request,
                              atlpb::island::v1::RegisterIslandResponse* response) override {
    absl::MutexLock lock(&mutex_);
    state_.registered_ranks.push_back(request->capabilities().ranks());
    state_.knows_island = true;
    response->set_incarnation(state_.incarnation);
    response->set_epoch_uri(state_.epoch_uri);
    *response->mutable_heartbeat_interval() = wire::ToProto(absl::Milliseconds(20));
    return grpc::Status::OK;
  }
  grpc::Status Heartbeat(Context*, const atlpb::island::v1::HeartbeatRequest* request,
                         atlpb::island::v1::HeartbeatResponse* response) override {
    absl::MutexLock lock(&mutex_);
    if (!state_.heartbeat_refusal.ok()) return rpc::ToGrpc(state_.heartbeat_refusal);
    if (!state_.knows_island) return {grpc::StatusCode::NOT_FOUND, "register first"};
    if (request->incarnation() != state_.incarnation) {
      return rpc::ToGrpc(MakeError(absl::StatusCode::kAborted, "STALE_INCARNATION", "another process"));
    }
    if (request->step_seconds() > 0) state_.step_seconds = request->step_seconds();
    if (request->leases_size() > 0) ++state_.beats;
    response->set_drain_reason(state_.drain_reason);
    for (const auto& lease : request->leases()) {
      if (!state_.stopping.empty()) {
        auto* verdict = response->add_stopping();
        verdict->set_task_id(lease.task_id());
        verdict->set_reason(state_.stopping);
      }
      if (state_.revoke.empty()) continue;
      response->add_revoked()->set_task_id(lease.task_id());
      response->mutable_revoked(0)->set_reason(state_.revoke);
    }
    return grpc::Status::OK;
  }
  grpc::Status ClaimTask(Context* context, const atlpb::island::v1::ClaimTaskRequest* request,
                         atlpb::island::v1::ClaimTaskResponse* response) override {
    absl::MutexLock lock(&mutex_);
    const auto due = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return !state_.to_grant.empty(); };
    const absl::Duration wait = std::min(wire::FromProto(request->wait()), absl::Milliseconds(100));
    if (!mutex_.AwaitWithTimeout(absl::Condition(&due), wait)) return grpc::Status::OK;
    *response->mutable_grant() = wire::ToProto(state_.to_grant.front());
    state_.granted.push_back(state_.to_grant.front().token);
    state_.to_grant.pop_front();
    return grpc::Status::OK;
  }
  grpc::Status ReportProgress(Context*, const atlpb::island::v1::ReportProgressRequest* request,
                              atlpb::island::v1::ReportProgressResponse*) override {
    absl::MutexLock lock(&mutex_);
    state_.progress.push_back(request->progress().step());
    return grpc::Status::OK;
  }
  grpc::Status CommitCheckpoint(Context*, const atlpb::island::v1::CommitCheckpointRequest* request,
                                atlpb::island::v1::CommitCheckpointResponse*) override {
    absl::MutexLock lock(&mutex_);
    if (state_.commits_to_refuse > 0) {
      --state_.commits_to_refuse;
      return rpc::ToGrpc(state_.commit_refusal);
    }
    state_.commits.emplace_back(request->token().attempt(), request->checkpoint().step());
    state_.committed.push_back(wire::FromProto(request->checkpoint()));
    return grpc::Status::OK;
  }
  grpc::Status CompleteTask(Context*, const atlpb::island::v1::CompleteTaskRequest* request,
                            atlpb::island::v1::CompleteTaskResponse*) override {
    absl::MutexLock lock(&mutex_);
    state_.completed.push_back(request->token().task_id());
    for (const auto& output : request->outputs()) state_.outputs.push_back(wire::FromProto(output));
    return grpc::Status::OK;
  }
  grpc::Status FailTask(Context*, const atlpb::island::v1::FailTaskRequest* request,
                        atlpb::island::v1::FailTaskResponse*) override {
    absl::MutexLock lock(&mutex_);
    state_.failed.push_back(request->code() + (request->permanent() ? " permanent: " : ": ") + request->message());
    return grpc::Status::OK;
  }
  grpc::Status ReleaseTask(Context*, const atlpb::island::v1::ReleaseTaskRequest* request,
                           atlpb::island::v1::ReleaseTaskResponse*) override {
    absl::MutexLock lock(&mutex_);
    state_.released.push_back(request->reason());
    if (request->store_failed()) ++state_.store_failures;
    return grpc::Status::OK;
  }

  grpc::Status RollbackTask(Context*, const atlpb::island::v1::RollbackTaskRequest* request,
                            atlpb::island::v1::RollbackTaskResponse* response) override {
    absl::MutexLock lock(&mutex_);
    state_.rolled_back.push_back(*request);
    response->mutable_rollback()->set_to_step(request->before_step() - 1);
    return grpc::Status::OK;
  }

  absl::Mutex mutex_;
  State state_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace atl::worker
