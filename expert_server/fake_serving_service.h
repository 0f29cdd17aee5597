// A registry of expert servers for tests: sends configured answers and records the requests.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "atoll/serving/v1/serving_service.grpc.pb.h"
#include "common/rpc/server.h"
#include "common/wire/status.h"
#include "common/wire/time_wire.h"

namespace atl::worker {

class FakeServingService final : public atlpb::serving::v1::ServingService::Service {
 public:
  struct State {
    std::vector<atlpb::serving::v1::HeartbeatRequest> heartbeats;
    std::vector<atlpb::serving::v1::AssignedNetwork> to_assign;
    absl::Duration interval = absl::Minutes(1);
    bool undecided = false;
    bool hang = false;    // no answer until the caller gives up
    absl::Status answer;  // of every call, unless OK
  };

  // Blocks until `condition` of the state holds; false after 20 s.
  bool Await(const std::function<bool(const State&)>& condition) {
    absl::MutexLock lock(&mutex_);
    const auto holds = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return condition(state_); };
    return mutex_.AwaitWithTimeout(absl::Condition(&holds), absl::Seconds(20));
  }
  bool AwaitHeartbeats(size_t count) {
    return Await([&](const State& state) { return state.heartbeats.size() >= count; });
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
  grpc::Status Heartbeat(grpc::ServerContext* context, const atlpb::serving::v1::HeartbeatRequest* request,
                         atlpb::serving::v1::HeartbeatResponse* response) override {
    absl::MutexLock lock(&mutex_);
    state_.heartbeats.push_back(*request);
    // A synchronous handler learns that its caller has disconnected only by polling IsCancelled.
    const auto over = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return !state_.hang; };
    while (!mutex_.AwaitWithTimeout(absl::Condition(&over), absl::Milliseconds(10)) && !context->IsCancelled()) {
    }
    if (!state_.answer.ok()) return rpc::ToGrpc(state_.answer);
    for (const auto& network : state_.to_assign) *response->add_assigned() = network;
    response->set_undecided(state_.undecided);
    *response->mutable_heartbeat_interval() = wire::ToProto(state_.interval);
    return grpc::Status::OK;
  }

  absl::Mutex mutex_;
  State state_ ABSL_GUARDED_BY(mutex_);
};

// The service on its own port.
struct RunningServingService {
  explicit RunningServingService(const std::string& listen = "127.0.0.1:0")
      : server(rpc::Server::Start({.listen = listen,
                                   .services = {{atlpb::serving::v1::ServingService::service_full_name(), &service}}})
                   .value()) {}
  ~RunningServingService() { server->Shutdown(absl::ZeroDuration()); }

  FakeServingService service;
  std::unique_ptr<rpc::Server> server;
};

}  // namespace atl::worker
