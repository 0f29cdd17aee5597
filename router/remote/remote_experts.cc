#include "router/remote/remote_experts.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_join.h"
#include "common/base/errors.h"
#include "fmt/format.h"
#include "inference/hosted_networks.h"
#include "router/remote/expert_client.h"
#include "spdlog/spdlog.h"

namespace atl::router {

// The state that lanes call, and the place for lanes that the engine releases.
struct RemoteExperts::Shared {
  Watchers watchers;
  absl::Mutex mutex;
  int64_t changes ABSL_GUARDED_BY(mutex) = 0;
  std::vector<std::shared_ptr<ExpertLane>> released ABSL_GUARDED_BY(mutex);
  bool ended ABSL_GUARDED_BY(mutex) = false;  // the thread

  void OnChange() {
    {
      absl::MutexLock lock(&mutex);
      ++changes;
    }
    watchers.Notify();
  }
  void Release(std::shared_ptr<ExpertLane> lane) {
    // Its end may wait for a call of OnChange: not under the lock.
    absl::MutexLock lock(&mutex);
    if (!ended) released.push_back(std::exchange(lane, nullptr));
  }
};

RemoteExperts::MakeLane RemoteExperts::Connect(Clock* clock, std::shared_ptr<grpc::ChannelCredentials> credentials) {
  return [clock, credentials = std::move(credentials)](const std::string& name, const std::string& address,
                                                       std::function<void()> hosting) {
    return std::make_shared<RemoteLane>(
        RemoteLaneOptions{
            .address = address, .credentials = credentials, .name = name, .on_hosting = std::move(hosting)},
        clock);
  };
}

RemoteExperts::RemoteExperts(Options options, MakeLane make_lane, Engine* engine, Clock* clock)
    : options_(std::move(options)),
      make_lane_(std::move(make_lane)),
      engine_(engine),
      clock_(clock),
      shared_(std::make_shared<Shared>()) {
  {
    absl::MutexLock lock(&mutex_);
    for (const std::string& address : options_.addresses) {
      if (!named_.contains(address)) named_[address] = AddLane(address, address);
    }
  }
  thread_ = std::thread([this] { Run(); });
}

RemoteExperts::~RemoteExperts() {
  Stop();
  thread_.join();
}

std::shared_ptr<ExpertLane> RemoteExperts::AddLane(const std::string& name, const std::string& address) {
  const std::shared_ptr<ExpertLane> lane = make_lane_(name, address, [shared = shared_] { shared->OnChange(); });
  // The engine's thread must not be the one that waits for the lane's end.
  engine_->AddLane(std::shared_ptr<ExpertLane>(
      lane.get(), [lane, shared = shared_](ExpertLane*) mutable { shared->Release(std::move(lane)); }));
  return lane;
}

void RemoteExperts::Run() {
  while (true) {
    int64_t seen = 0;
    {
      absl::MutexLock lock(&shared_->mutex);
      seen = shared_->changes;
    }
    if (stopping()) break;
    ChangeLanes();
    const auto news = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(shared_->mutex) {
      return shared_->changes != seen || !shared_->released.empty();
    };
    std::vector<std::shared_ptr<ExpertLane>> released;
    absl::MutexLock lock(&shared_->mutex);
    shared_->mutex.Await(absl::Condition(&news));
    released.swap(shared_->released);
  }
  std::vector<std::shared_ptr<ExpertLane>> released;
  absl::MutexLock lock(&shared_->mutex);
  shared_->ended = true;
  released.swap(shared_->released);
}

void RemoteExperts::ChangeLanes() {
  std::vector<std::shared_ptr<ExpertLane>> removed;  // let go of without the lock
  absl::MutexLock lock(&mutex_);
  if (!list_ || stopping_) return;
  std::vector<ServerLane> lanes;
  for (const auto& [id, found] : found_) {
    lanes.push_back({.server = found.server, .hosts = !found.lane->hosted()->empty()});
  }
  const LaneChanges changes = DecideLanes(list_->servers, lanes, options_.addresses);
  for (const std::string& id : changes.remove) {
    const auto found = found_.find(id);
    spdlog::info("expert server '{}' at {} is gone", id, found->second.server.address);
    engine_->RemoveLane(found->second.lane->info().name);
    removed.push_back(std::move(found->second.lane));
    found_.erase(found);
  }
  for (const ListedServer& server : changes.add) {
    spdlog::info("expert server '{}' at {} was found", server.server_id, server.address);
    found_[server.server_id] = {
        .server = server, .lane = AddLane(fmt::format("{} at {}", server.server_id, server.address), server.address)};
  }
}

void RemoteExperts::TakeList(ServerList list) {
  {
    absl::MutexLock lock(&mutex_);
    list_ = std::move(list);
  }
  shared_->OnChange();
}

bool RemoteExperts::AnyServer() const {
  return !named_.empty() || !found_.empty() || (list_ && !list_->servers.empty());
}

ServerNeeds RemoteExperts::Needs(const std::vector<NetworkId>& networks) const {
  ServerNeeds needs{.networks = static_cast<int32_t>(networks.size())};
  absl::MutexLock lock(&mutex_);
  needs.without_servers = !AnyServer();
  std::vector<std::shared_ptr<const std::vector<HostedNetwork>>> hosted;
  for (const auto& [address, lane] : named_) hosted.push_back(lane->hosted());
  for (const auto& [id, found] : found_) hosted.push_back(found.lane->hosted());
  for (const NetworkId& id : networks) {
    const bool somewhere =
        std::any_of(hosted.begin(), hosted.end(), [&](const auto& list) { return FindHosted(*list, id) != nullptr; });
    if (!somewhere) needs.missing.push_back(id.expert);
  }
  if (!list_ || networks.empty()) return needs;
  for (const ServerList::Shortage& shortage : list_->shortages) {
    if (shortage.model != networks.front().model || shortage.version != networks.front().version) continue;
    needs.bytes_needed = shortage.bytes_needed;
    needs.bytes_lacking = shortage.bytes_lacking;
    needs.why = shortage.why;
  }
  return needs;
}

absl::StatusOr<bool> RemoteExperts::AwaitAnyServer(absl::Duration timeout) {
  absl::MutexLock lock(&mutex_);
  const auto known = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return list_.has_value() || !named_.empty() || stopping_;
  };
  clock_->AwaitUntil(&mutex_, absl::Condition(&known), clock_->Monotonic() + timeout);
  if (list_ || !named_.empty()) return AnyServer();
  return MakeError(absl::StatusCode::kUnavailable, "SERVERS_UNKNOWN",
                   "expected the coordinator's list of expert servers, found none yet");
}

absl::Status RemoteExperts::AwaitHosted(const std::vector<NetworkId>& networks, absl::Duration timeout) {
  const absl::Duration deadline = clock_->Monotonic() + timeout;
  ServerNeeds needs;
  while (true) {
    int64_t seen = 0;
    {
      absl::MutexLock lock(&shared_->mutex);
      seen = shared_->changes;
    }
    needs = Needs(networks);
    if (needs.missing.empty() || stopping()) break;
    absl::MutexLock lock(&shared_->mutex);
    const auto news = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(shared_->mutex) { return shared_->changes != seen; };
    if (!clock_->AwaitUntil(&shared_->mutex, absl::Condition(&news), deadline)) break;
  }
  if (needs.missing.empty()) return absl::OkStatus();
  const NetworkId& any = networks.front();
  return MakeError(absl::StatusCode::kUnavailable, "EXPERTS_MISSING",
                   fmt::format("model '{}' version '{}', digest '{}': {}; asked: {}", any.model, any.version,
                               any.digest, DescribeMissing(needs), absl::StrJoin(lane_names(), ", ")));
}

void RemoteExperts::Stop() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  shared_->OnChange();
}

bool RemoteExperts::stopping() const {
  absl::MutexLock lock(&mutex_);
  return stopping_;
}

int64_t RemoteExperts::Watch(std::function<void()> changed) {
  return shared_->watchers.Add(std::move(changed));
}

void RemoteExperts::Unwatch(int64_t watcher) {
  shared_->watchers.Remove(watcher);
}

std::vector<std::string> RemoteExperts::lane_names() const {
  absl::MutexLock lock(&mutex_);
  std::vector<std::string> names;
  for (const auto& [address, lane] : named_) names.push_back(lane->info().name);
  for (const auto& [id, found] : found_) names.push_back(found.lane->info().name);
  return names;
}

}  // namespace atl::router
