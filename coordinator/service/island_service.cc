#include "coordinator/service/island_service.h"

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "common/base/errors.h"
#include "common/base/status_macros.h"
#include "common/wire/task_wire.h"
#include "common/wire/time_wire.h"
#include "coordinator/service/messages.h"
#include "fmt/format.h"

namespace atl::coordinator {
namespace {

namespace island_pb = atlpb::island::v1;

// No step takes longer than a day. Values that are not a valid time count as not reported.
absl::Duration StepTimeOf(const island_pb::HeartbeatRequest& request) {
  const double seconds = request.step_seconds();
  return seconds > 0 && seconds < 86'400 ? absl::Seconds(seconds) : absl::ZeroDuration();
}

// An island holds one task. Each lease that is not active requires a store lookup, while all others wait.
constexpr int kMaxLeases = 64;
// The limit for all URIs of a claim, which may wait in memory for a minute.
constexpr size_t kMaxCachedUriBytes = size_t{64} << 10;

absl::Status CheckLeases(const island_pb::HeartbeatRequest& request) {
  if (request.leases_size() <= kMaxLeases) return absl::OkStatus();
  return FieldError("leases", "TOO_MANY_LEASES",
                    fmt::format("expected at most {}, found {}", kMaxLeases, request.leases_size()));
}

absl::Status CheckCachedUris(const island_pb::ClaimTaskRequest& request) {
  size_t bytes = 0;
  // An empty one takes memory too.
  for (const std::string& uri : request.cached_uris()) bytes += 1 + uri.size();
  if (bytes <= kMaxCachedUriBytes) return absl::OkStatus();
  return FieldError("cached_uris", "TOO_MANY_CACHED_URIS",
                    fmt::format("expected at most {} bytes, found {}", kMaxCachedUriBytes, bytes));
}

// Returns the island quota of the caller that registers an island.
IslandQuota IslandQuotaOf(const ServiceContext& context, const grpc::CallbackServerContext& call) {
  const absl::StatusOr<rpc::Principal> caller = CallerOf(context, call);
  if (!caller.ok()) return {};  // and it is refused
  return {.caller = caller->subject,
          .most = caller->quota.islands,
          .counts = [who = *caller](std::string_view island_id) { return rpc::MayActForIsland(who, island_id); }};
}

// Fills in the keys of a grant, where there is a program that makes them, and passes it on: on the core's thread, but
// for a coordinator that ends. To be called there too. UNAVAILABLE (STORAGE_GRANT_FAILED) leaves the lease to its
// island, which asks again; ABORTED (STALE_ATTEMPT): it is another's by now.
void WithKeys(const ServiceContext& context, const spec::TaskGrant& grant,
              std::function<void(absl::StatusOr<spec::TaskGrant>)> done) {
  if (context.storage_grants == nullptr) return done(grant);
  const auto take = [core = context.core, core_thread = context.core_thread, grant,
                     done](absl::StatusOr<spec::StorageGrant> storage) {
    const bool posted = core_thread->PostEnd([core, grant, done, storage = std::move(storage)] {
      // Renews the lease even if the program failed: it took time, and the island does not know its lease yet.
      const absl::Status held = core->KeepLease(grant.token).status();
      if (!held.ok() || !storage.ok()) return done(held.ok() ? storage.status() : held);
      spec::TaskGrant whole = grant;
      whole.storage = *storage;
      done(std::move(whole));
    });
    if (!posted) done(Busy());
  };
  context.storage_grants->Make(grant, take);
}

// Asks whether the caller of a claim may still act for its island.
std::function<absl::Status()> StillLetInOf(const ServiceContext& context, const grpc::CallbackServerContext& call,
                                           const std::string& island_id) {
  if (context.guard == nullptr) return {};
  const std::string method = fmt::format("/{}/ClaimTask", island_pb::IslandService::service_full_name());
  return [guard = context.guard, start = rpc::StartOf(method, call), island_id]() -> absl::Status {
    ATOLL_ASSIGN_OR_RETURN(const rpc::Principal caller, guard->WhoStill(start));
    return rpc::CheckIsland(caller, island_id);
  };
}

// A long poll. The core answers it from its own thread, or the caller gives up, whichever comes first; only then does
// gRPC let go of request and response.
class ClaimReactor : public grpc::ServerUnaryReactor, public std::enable_shared_from_this<ClaimReactor> {
 public:
  ClaimReactor(const ServiceContext& context, const grpc::CallbackServerContext& call,
               island_pb::ClaimTaskResponse* response)
      : context_(context), timer_(context, call, "ClaimTask"), response_(response) {}

  // `own`: whether the island is the caller's; `still_let_in`: whether it still is, empty where that does not change.
  void Start(const island_pb::ClaimTaskRequest& request, const absl::Status& own,
             std::function<absl::Status()> still_let_in) {
    self_ = shared_from_this();
    still_let_in_ = std::move(still_let_in);
    if (!own.ok()) {
      timer_.Changes(request.island_id());
      FinishOnce(own);
      return;
    }
    if (const absl::Status fits = CheckCachedUris(request); !fits.ok()) {
      FinishOnce(fits);
      return;
    }
    ClaimRequest claim;
    claim.island_id = request.island_id();
    claim.incarnation = request.incarnation();
    claim.wait = wire::FromProto(request.wait());
    claim.cached_uris = {request.cached_uris().begin(), request.cached_uris().end()};
    claim.still_let_in = still_let_in_;
    const auto self = self_;
    const bool posted = context_.core_thread->Post([self, claim = std::move(claim)] {
      // Cancelled before its turn: nothing must be granted to a caller that is gone.
      if (self->finished()) return;
      self->ticket_ = self->context_.core->ClaimTask(
          claim, [self](absl::StatusOr<ClaimAnswer> answer) { self->Answer(std::move(answer)); });
    });
    if (!posted) FinishOnce(Busy());
  }

  void OnCancel() override {
    const auto self = shared_from_this();
    // A claim that was answered or rejected has no waiting entry in the core.
    if (!FinishOnce(absl::CancelledError("the caller went away"))) return;
    context_.core_thread->PostEnd([self] { self->context_.core->CancelClaim(self->ticket_); });
  }

  void OnDone() override { const auto self = std::move(self_); }

 private:
  bool finished() {
    absl::MutexLock lock(&mutex_);
    return finished_;
  }

  void Answer(const absl::StatusOr<ClaimAnswer>& answer) {
    if (!answer.ok() || !answer->grant) {
      FinishOnce(answer.status(), {}, answer.ok() ? answer->unmet : std::vector<std::string>());
      return;
    }
    const auto self = shared_from_this();
    WithKeys(
        context_, *answer->grant, [self, token = answer->grant->token](const absl::StatusOr<spec::TaskGrant>& grant) {
          absl::Status status = grant.status();
          // Keys may have taken seconds to make.
          if (status.ok() && self->still_let_in_) status = self->still_let_in_();
          const bool told = self->FinishOnce(status, token.task_id, {}, status.ok() ? &*grant : nullptr);
          // Where its keys could not be made the island asks again; one that is gone, or shut out, does not.
          if (told && (status.ok() || !grant.ok())) return;
          self->context_.core_thread->PostEnd([self, token] { self->context_.core->TakeBack(self->ticket_, token); });
        });
  }

  // False where the call was finished before. `task_id`: of the task that was granted, also where its grant could not
  // be made.
  bool FinishOnce(const absl::Status& status, const std::string& task_id = "",
                  const std::vector<std::string>& unmet = {}, const spec::TaskGrant* grant = nullptr) {
    absl::MutexLock lock(&mutex_);
    if (finished_) return false;
    finished_ = true;
    if (grant != nullptr) *response_->mutable_grant() = wire::ToProto(*grant);
    if (!task_id.empty()) timer_.Changed(task_id);
    for (const std::string& line : unmet) response_->add_unmet(line);
    timer_.End(status);
    Finish(rpc::ToGrpc(status));
    return true;
  }

  const ServiceContext context_;
  CallTimer timer_;
  island_pb::ClaimTaskResponse* const response_;
  std::shared_ptr<ClaimReactor> self_;
  std::function<absl::Status()> still_let_in_;
  int64_t ticket_ = 0;  // used on the core's thread only
  absl::Mutex mutex_;
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace

grpc::ServerUnaryReactor* IslandServiceImpl::RegisterIsland(grpc::CallbackServerContext* call,
                                                            const island_pb::RegisterIslandRequest* request,
                                                            island_pb::RegisterIslandResponse* response) {
  const absl::Status own = CheckIsland(context_, *call, request->island_id());
  return Serve(context_, call, {"RegisterIsland", request->island_id()},
               [own, quota = IslandQuotaOf(context_, *call), request, response](Core& core) -> absl::Status {
                 ATOLL_RETURN_IF_ERROR(own);
                 ATOLL_ASSIGN_OR_RETURN(const Registration registration,
                                        core.RegisterIsland(request->island_id(), request->request_id(),
                                                            CapabilitiesFromProto(request->capabilities()), quota));
                 response->set_incarnation(registration.incarnation);
                 response->set_store_epoch(registration.store_epoch);
                 response->set_epoch_uri(registration.epoch_uri);
                 *response->mutable_heartbeat_interval() = wire::ToProto(registration.lease.heartbeat_interval);
                 *response->mutable_lease_duration() = wire::ToProto(registration.lease.lease_duration);
                 return absl::OkStatus();
               });
}

grpc::ServerUnaryReactor* IslandServiceImpl::Heartbeat(grpc::CallbackServerContext* call,
                                                       const island_pb::HeartbeatRequest* request,
                                                       island_pb::HeartbeatResponse* response) {
  const absl::Status own = CheckIsland(context_, *call, request->island_id());
  const absl::StatusOr<rpc::Principal> caller = CallerOf(context_, *call);
  return Serve(context_, call, "Heartbeat", [own, caller, request, response](Core& core) -> absl::Status {
    ATOLL_RETURN_IF_ERROR(own);
    ATOLL_RETURN_IF_ERROR(CheckLeases(*request));
    std::vector<spec::LeaseToken> tokens;
    for (const island_pb::LeaseToken& lease : request->leases()) tokens.push_back(wire::FromProto(lease));
    for (const spec::LeaseToken& token : tokens) ATOLL_RETURN_IF_ERROR(CheckHolder(core, caller, token));
    ATOLL_ASSIGN_OR_RETURN(const HeartbeatAnswer answer,
                           core.Heartbeat(request->island_id(), request->incarnation(), request->sequence(), tokens,
                                          StepTimeOf(*request)));
    const auto to_proto = [](const LeaseVerdict& verdict, island_pb::LeaseVerdict* proto) {
      proto->set_task_id(verdict.task_id);
      proto->set_reason(verdict.reason);
    };
    for (const LeaseVerdict& verdict : answer.revoked) to_proto(verdict, response->add_revoked());
    for (const LeaseVerdict& verdict : answer.stopping) to_proto(verdict, response->add_stopping());
    response->set_drain_reason(answer.drain_reason);
    return absl::OkStatus();
  });
}

grpc::ServerUnaryReactor* IslandServiceImpl::ClaimTask(grpc::CallbackServerContext* call,
                                                       const island_pb::ClaimTaskRequest* request,
                                                       island_pb::ClaimTaskResponse* response) {
  const auto reactor = std::make_shared<ClaimReactor>(context_, *call, response);
  reactor->Start(*request, CheckIsland(context_, *call, request->island_id()),
                 StillLetInOf(context_, *call, request->island_id()));
  return reactor.get();
}

grpc::ServerUnaryReactor* IslandServiceImpl::ReportProgress(grpc::CallbackServerContext* call,
                                                            const island_pb::ReportProgressRequest* request,
                                                            island_pb::ReportProgressResponse*) {
  return ServeAttempt(context_, call, "ReportProgress", wire::FromProto(request->token()),
                      [request](Core& core, const spec::LeaseToken& token) {
                        return core.ReportProgress(token, request->sequence(), wire::FromProto(request->progress()));
                      });
}

grpc::ServerUnaryReactor* IslandServiceImpl::CommitCheckpoint(grpc::CallbackServerContext* call,
                                                              const island_pb::CommitCheckpointRequest* request,
                                                              island_pb::CommitCheckpointResponse* response) {
  return ServeAttempt(context_, call, {"CommitCheckpoint", request->token().task_id()},
                      wire::FromProto(request->token()),
                      [request, response](Core& core, const spec::LeaseToken& token) -> absl::Status {
                        ATOLL_ASSIGN_OR_RETURN(const std::vector<int64_t> superseded,
                                               core.CommitCheckpoint(token, wire::FromProto(request->checkpoint())));
                        for (const int64_t step : superseded) response->add_superseded_steps(step);
                        return absl::OkStatus();
                      });
}

grpc::ServerUnaryReactor* IslandServiceImpl::CompleteTask(grpc::CallbackServerContext* call,
                                                          const island_pb::CompleteTaskRequest* request,
                                                          island_pb::CompleteTaskResponse*) {
  return ServeAttempt(context_, call, {"CompleteTask", request->token().task_id()}, wire::FromProto(request->token()),
                      [request](Core& core, const spec::LeaseToken& token) {
                        std::vector<spec::Artifact> outputs;
                        for (const auto& artifact : request->outputs()) outputs.push_back(wire::FromProto(artifact));
                        return core.CompleteTask(token, outputs, wire::FromProto(request->progress()));
                      });
}

grpc::ServerUnaryReactor* IslandServiceImpl::FailTask(grpc::CallbackServerContext* call,
                                                      const island_pb::FailTaskRequest* request,
                                                      island_pb::FailTaskResponse*) {
  return ServeAttempt(context_, call, {"FailTask", request->token().task_id()}, wire::FromProto(request->token()),
                      [request](Core& core, const spec::LeaseToken& token) {
                        return core.FailTask(token, request->code(), request->message(), request->permanent());
                      });
}

grpc::ServerUnaryReactor* IslandServiceImpl::ReleaseTask(grpc::CallbackServerContext* call,
                                                         const island_pb::ReleaseTaskRequest* request,
                                                         island_pb::ReleaseTaskResponse*) {
  return ServeAttempt(context_, call, {"ReleaseTask", request->token().task_id()}, wire::FromProto(request->token()),
                      [request](Core& core, const spec::LeaseToken& token) {
                        return core.ReleaseTask(token, request->reason(), request->store_failed());
                      });
}

grpc::ServerUnaryReactor* IslandServiceImpl::RollbackTask(grpc::CallbackServerContext* call,
                                                          const island_pb::RollbackTaskRequest* request,
                                                          island_pb::RollbackTaskResponse* response) {
  return ServeAttempt(context_, call, {"RollbackTask", request->token().task_id()}, wire::FromProto(request->token()),
                      [request, response](Core& core, const spec::LeaseToken& token) -> absl::Status {
                        ATOLL_ASSIGN_OR_RETURN(const std::optional<jobs::Rollback> rollback,
                                               core.RollBackTask(token, {.before_step = request->before_step(),
                                                                         .through_step = request->through_step(),
                                                                         .reason = request->reason(),
                                                                         .message = request->message(),
                                                                         .evidence_uri = request->evidence_uri()}));
                        if (rollback) *response->mutable_rollback() = RollbackToProto(*rollback);
                        return absl::OkStatus();
                      });
}

grpc::ServerUnaryReactor* IslandServiceImpl::RenewStorage(grpc::CallbackServerContext* call,
                                                          const island_pb::RenewStorageRequest* request,
                                                          island_pb::RenewStorageResponse* response) {
  grpc::ServerUnaryReactor* reactor = call->DefaultReactor();
  const auto timer = std::make_shared<CallTimer>(context_, *call, CallName("RenewStorage", request->token().task_id()));
  const auto finish = [reactor, timer](const absl::Status& status) {
    timer->End(status);
    reactor->Finish(rpc::ToGrpc(status));
  };
  const bool posted =
      context_.core_thread->Post([context = context_, caller = CallerOf(context_, *call), request, response, finish] {
        const spec::LeaseToken token = wire::FromProto(request->token());
        if (const absl::Status own = CheckHolder(*context.core, caller, token); !own.ok()) return finish(own);
        const absl::StatusOr<spec::TaskGrant> held = context.core->KeepLease(token);
        if (!held.ok()) return finish(held.status());
        WithKeys(context, *held, [response, finish](const absl::StatusOr<spec::TaskGrant>& grant) {
          if (grant.ok()) *response->mutable_storage() = wire::ToProto(*grant).storage();
          finish(grant.status());
        });
      });
  if (!posted) finish(Busy());
  return reactor;
}

}  // namespace atl::coordinator
