#include "tests/scale/simulated_islands.h"

#include <algorithm>
#include <utility>

#include "absl/time/clock.h"
#include "common/rpc/channel.h"
#include "common/wire/status.h"
#include "common/wire/task_wire.h"
#include "fmt/format.h"
#include "grpcpp/create_channel.h"
#include "tests/scale/filled_store.h"

namespace atl::scale {
namespace {

namespace pb = atlpb::island::v1;

constexpr absl::Duration kCallTimeout = absl::Seconds(10);

// As common/rpc makes them, but for the shared connection that all channels to one address would have.
std::shared_ptr<grpc::Channel> OwnChannel(const IslandsOptions& options) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, 20'000);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 10'000);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 200);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, options.credentials != nullptr ? 10'000 : 1'000);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 5'000);
  return grpc::CreateCustomChannel(
      options.coordinator, options.credentials ? options.credentials : grpc::InsecureChannelCredentials(), arguments);
}

}  // namespace

struct SimulatedIslands::HeartbeatCall {
  grpc::ClientContext context;
  pb::HeartbeatRequest request;
  pb::HeartbeatResponse response;
};

struct SimulatedIslands::CommitCall {
  grpc::ClientContext context;
  pb::CommitCheckpointRequest request;
  pb::CommitCheckpointResponse response;
};

SimulatedIslands::SimulatedIslands(const std::vector<spec::LeaseToken>& tokens, IslandsOptions options)
    : options_(std::move(options)), random_(options_.seed) {
  const absl::Time now = absl::Now();
  for (const spec::LeaseToken& token : tokens) {
    auto island = std::make_unique<Island>();
    island->stub = pb::IslandService::NewStub(OwnChannel(options_));
    island->token = wire::ToProto(token);
    islands_.push_back(std::move(island));
  }
  // Spread over one interval, as islands that started at different times are.
  std::uniform_real_distribution<double> share(0, 1);
  for (size_t i = 0; i < islands_.size(); ++i) due_.push({now + share(random_) * options_.heartbeat_interval, i});
  thread_ = std::thread([this] { Run(); });
}

SimulatedIslands::~SimulatedIslands() {
  std::unique_lock<std::mutex> lock(mutex_);
  stopping_ = true;
  changed_.notify_all();
  changed_.wait(lock, [this] { return running_ == 0; });
  lock.unlock();
  thread_.join();
}

Observed SimulatedIslands::Take() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return std::exchange(observed_, {});
}

int64_t SimulatedIslands::RenewedSince(absl::Time time) const {
  return std::count_if(islands_.begin(), islands_.end(), [&](const std::unique_ptr<Island>& island) {
    return island->renewed_nanos > absl::ToUnixNanos(time);
  });
}

void SimulatedIslands::Run() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (!stopping_) {
    if (due_.empty()) {
      changed_.wait(lock);
      continue;
    }
    const Due next = due_.top();
    const absl::Time now = absl::Now();
    if (next.time > now) {
      changed_.wait_for(lock, absl::ToChronoNanoseconds(next.time - now));
      continue;
    }
    due_.pop();
    ++running_;
    observed_.worst_lateness = std::max(observed_.worst_lateness, absl::ToDoubleSeconds(now - next.time));
    lock.unlock();
    Send(next.island);
    lock.lock();
  }
}

void SimulatedIslands::Send(size_t island) {
  bool commits = false;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    commits = std::bernoulli_distribution(options_.commit_share)(random_);
  }
  commits ? SendCommit(island) : SendHeartbeat(island);
}

void SimulatedIslands::SendHeartbeat(size_t index) {
  Island& island = *islands_[index];
  auto call = std::make_shared<HeartbeatCall>();
  rpc::SetTimeout(&call->context, kCallTimeout);
  call->request.set_island_id(IslandIdAt(static_cast<int>(index)));
  call->request.set_incarnation(1);
  call->request.set_sequence(++island.sequence);
  *call->request.add_leases() = island.token;
  const absl::Time sent = absl::Now();
  island.stub->async()->Heartbeat(&call->context, &call->request, &call->response,
                                  [this, index, sent, call](const grpc::Status& status) {
                                    Ended(index, sent, status, call->response.revoked_size(), &Observed::heartbeats);
                                  });
}

void SimulatedIslands::SendCommit(size_t index) {
  Island& island = *islands_[index];
  auto call = std::make_shared<CommitCall>();
  rpc::SetTimeout(&call->context, kCallTimeout);
  const int64_t step = ++island.step;
  *call->request.mutable_token() = island.token;
  pb::CommittedCheckpoint* checkpoint = call->request.mutable_checkpoint();
  checkpoint->set_step(step);
  checkpoint->set_manifest_uri(fmt::format("{}/jobs/{}/{}-{}/{}-x/manifest.json", options_.blob_root,
                                           island.token.task_id(), island.token.store_epoch(), island.token.attempt(),
                                           step));
  checkpoint->set_manifest_sha256(std::string(64, 'a'));
  const absl::Time sent = absl::Now();
  island.stub->async()->CommitCheckpoint(
      &call->context, &call->request, &call->response,
      [this, index, sent, call](const grpc::Status& status) { Ended(index, sent, status, 0, &Observed::commits); });
}

void SimulatedIslands::Ended(size_t index, absl::Time sent, const grpc::Status& status, int64_t revoked,
                             std::vector<double> Observed::*times) {
  const absl::Time now = absl::Now();
  if (status.ok()) islands_[index]->renewed_nanos = absl::ToUnixNanos(sent);
  const std::lock_guard<std::mutex> lock(mutex_);
  observed_.revoked += revoked;
  if (status.ok()) {
    (observed_.*times).push_back(absl::ToDoubleSeconds(now - sent));
  } else if (status.error_code() == grpc::StatusCode::UNAVAILABLE ||
             status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED) {
    ++observed_.unanswered;
  } else if (observed_.refused++ == 0) {
    observed_.first_refusal = rpc::FromGrpc(status).ToString();
  }
  const double factor = std::uniform_real_distribution<double>(1 - options_.jitter, 1 + options_.jitter)(random_);
  // From when this one was sent, as a timer that ticks: a slow answer does not slow the island down.
  due_.push({std::max(now, sent + factor * options_.heartbeat_interval), index});
  --running_;
  changed_.notify_all();
}

double Quantile(std::vector<double>& values, double share) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  return values[std::min(values.size() - 1, static_cast<size_t>(share * static_cast<double>(values.size())))];
}

}  // namespace atl::scale
