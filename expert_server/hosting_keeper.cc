#include "expert_server/hosting_keeper.h"

#include <utility>

#include "common/base/backoff.h"
#include "spdlog/spdlog.h"

namespace atl::worker {

namespace {

// Between two tries to load a network.
constexpr BackoffLimits kLoadBackoff{.first = absl::Seconds(1), .longest = absl::Minutes(1)};

}  // namespace

using placement::NetworkState;

HostingKeeper::HostingKeeper(Calls calls, Clock* clock) : calls_(std::move(calls)), clock_(clock) {
  thread_ = std::thread([this] { Run(); });
}

HostingKeeper::~HostingKeeper() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  thread_.join();
}

void HostingKeeper::Assign(std::vector<AssignedNetwork> assigned) {
  absl::MutexLock lock(&mutex_);
  for (auto& [id, entry] : entries_) entry.wanted = false;
  for (AssignedNetwork& network : assigned) {
    Entry& entry = entries_[network.id];
    entry.wanted = true;
    entry.hosted.network = network.id;
    entry.assigned = std::move(network);
  }
  news_ = true;
}

void HostingKeeper::LoadAgain(const NetworkId& id) {
  absl::MutexLock lock(&mutex_);
  const auto entry = entries_.find(id);
  if (entry == entries_.end() || entry->second.hosted.state != NetworkState::kReady) return;
  entry->second.hosted.state = NetworkState::kLoading;
  entry->second.next_try = -absl::InfiniteDuration();
  news_ = true;
}

std::vector<placement::HostedNetwork> HostingKeeper::hosted() const {
  std::vector<placement::HostedNetwork> hosted;
  absl::MutexLock lock(&mutex_);
  for (const auto& [id, entry] : entries_) hosted.push_back(entry.hosted);
  return hosted;
}

absl::Status HostingKeeper::AwaitReady() {
  absl::Status error;
  const auto settled = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    bool ready = true;
    for (const auto& [id, entry] : entries_) {
      if (entry.hosted.state == NetworkState::kFailed) error = entry.hosted.error;
      ready = ready && entry.hosted.state == NetworkState::kReady;
    }
    return ready || !error.ok();
  };
  absl::MutexLock lock(&mutex_);
  mutex_.Await(absl::Condition(&settled));
  return error;
}

HostingKeeper::Entry* HostingKeeper::Next(absl::Duration now, absl::Duration* look_again) {
  *look_again = absl::InfiniteDuration();
  for (auto& [id, entry] : entries_) {
    if (!entry.wanted) return &entry;
  }
  for (auto& [id, entry] : entries_) {
    if (entry.hosted.state == NetworkState::kReady) continue;
    if (entry.next_try <= now) return &entry;
    *look_again = std::min(*look_again, entry.next_try);
  }
  return nullptr;
}

void HostingKeeper::Run() {
  for (;;) {
    AssignedNetwork network;
    bool drop = false;
    {
      absl::MutexLock lock(&mutex_);
      if (stopping_) return;
      news_ = false;
      absl::Duration look_again;
      Entry* const entry = Next(clock_->Monotonic(), &look_again);
      if (entry == nullptr) {
        const auto awake = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return stopping_ || news_; };
        clock_->AwaitUntil(&mutex_, absl::Condition(&awake), look_again);
        continue;
      }
      network = entry->assigned;
      drop = !entry->wanted;
      if (drop) {
        const bool ready = entry->hosted.state == NetworkState::kReady;
        entries_.erase(network.id);
        if (!ready) continue;
      } else {
        entry->hosted.state = NetworkState::kLoading;
      }
    }
    if (drop) {
      spdlog::info("drops {}", Describe(network.id));
      calls_.drop(network.id);
      if (calls_.changed) calls_.changed();
      continue;
    }
    const absl::StatusOr<int64_t> loaded = calls_.load(network);
    if (loaded.ok()) spdlog::info("hosts {}: {} bytes of weights", Describe(network.id), *loaded);
    Finish(network.id, loaded);
    if (calls_.changed) calls_.changed();
  }
}

void HostingKeeper::Finish(const NetworkId& id, const absl::StatusOr<int64_t>& loaded) {
  absl::MutexLock lock(&mutex_);
  // Only this thread erases entries.
  Entry& entry = entries_[id];
  entry.hosted.state = loaded.ok() ? NetworkState::kReady : NetworkState::kFailed;
  entry.hosted.bytes = loaded.value_or(0);
  entry.hosted.error = loaded.status();
  if (!loaded.ok()) entry.next_try = clock_->Monotonic() + BackoffDelay(kLoadBackoff, ++entry.failures, 0);
}

}  // namespace atl::worker
