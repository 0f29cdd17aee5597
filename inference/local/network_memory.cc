#include "inference/local/network_memory.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "common/base/errors.h"
#include "common/base/status_macros.h"
#include "fmt/format.h"

namespace atl::router {

absl::Status NetworkMemory::Host(const NetworkId& id, int64_t bytes, Load load) {
  if (budget_ > 0 && bytes > budget_) {
    return MakeError(absl::StatusCode::kResourceExhausted, "EXPERT_DOES_NOT_FIT",
                     fmt::format("{}: expected a memory budget of at least {} bytes for its weights, found {}",
                                 Describe(id), bytes, budget_));
  }
  {
    absl::MutexLock lock(&mutex_);
    Hosted& hosted = hosted_[id];
    if (++hosted.times > 1) return absl::OkStatus();
    hosted.bytes = bytes;
    hosted.load = std::move(load);
    RefreshHosted();
  }
  watchers_.Notify();
  return absl::OkStatus();
}

void NetworkMemory::Forget(const NetworkId& id) {
  Erase(id, /*whatever_times=*/false);
}

void NetworkMemory::Abandon(const NetworkId& id) {
  Erase(id, /*whatever_times=*/true);
}

void NetworkMemory::Erase(const NetworkId& id, bool whatever_times) {
  std::shared_ptr<const Network> freed;  // without the lock
  {
    absl::MutexLock lock(&mutex_);
    const auto hosted = hosted_.find(id);
    if (hosted == hosted_.end()) return;
    if (--hosted->second.times > 0 && !whatever_times) return;
    hosted_.erase(hosted);
    if (const auto entry = entries_.find(id); entry != entries_.end() && entry->second.pins == 0) {
      freed = std::move(entry->second.network);
      entries_.erase(entry);
    }
    ++changes_;
    RefreshHosted();
  }
  watchers_.Notify();
}

bool NetworkMemory::Reserve(const NetworkId& id, const std::set<NetworkId>* keep, Evicted* evicted) {
  const int64_t bytes = hosted_.at(id).bytes;
  int64_t missing = bytes - (budget_ > 0 ? budget_ : std::numeric_limits<int64_t>::max());
  int64_t evictable = 0;
  std::vector<std::pair<absl::Duration, NetworkId>> unused;
  for (const auto& [other, entry] : entries_) {
    missing += entry.bytes;
    if (entry.pins > 0) continue;
    const auto hosted = hosted_.find(other);
    const bool expected = hosted != hosted_.end() && hosted->second.expected > 0;
    if (keep != nullptr && (expected || keep->contains(other))) continue;
    evictable += entry.bytes;
    unused.emplace_back(entry.last_used, other);
  }
  if (missing > evictable) return false;
  std::sort(unused.begin(), unused.end());
  for (const auto& [last_used, other] : unused) {
    if (missing <= 0) break;
    const auto entry = entries_.find(other);
    missing -= entry->second.bytes;
    evicted->push_back(std::move(entry->second.network));
    entries_.erase(entry);
    ++evictions_;
  }
  entries_[id] = {.bytes = bytes, .pins = 1};
  if (!evicted->empty()) RefreshHosted();
  return true;
}

absl::StatusOr<std::shared_ptr<const Network>> NetworkMemory::Pin(const NetworkId& id) {
  return PinOrLoad(id, /*asked=*/true);
}

absl::StatusOr<std::shared_ptr<const Network>> NetworkMemory::PinForCheck(const NetworkId& id) {
  return PinOrLoad(id, /*asked=*/false);
}

absl::StatusOr<std::shared_ptr<const Network>> NetworkMemory::PinOrLoad(const NetworkId& id, bool asked) {
  Evicted evicted;
  Load load;
  {
    absl::MutexLock lock(&mutex_);
    const int64_t ticket = ++tickets_;
    const absl::Cleanup leave = [&]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
      if (first_waiting_ != ticket) return;
      first_waiting_ = 0;
      ++changes_;
    };
    while (true) {
      const auto hosted = hosted_.find(id);
      if (hosted == hosted_.end()) {
        return MakeError(absl::StatusCode::kNotFound, "NETWORK_NOT_HOSTED",
                         fmt::format("{} is not hosted here", Describe(id)));
      }
      // The caller that waits for room comes first, or those that find theirs in memory would keep it for ever.
      if (first_waiting_ == 0 || first_waiting_ == ticket) {
        const auto entry = entries_.find(id);
        if (entry != entries_.end() && entry->second.network != nullptr) return PinnedLocked(id, asked);
        if (entry == entries_.end()) {
          if (Reserve(id, /*keep=*/nullptr, &evicted)) {
            load = hosted->second.load;
            break;
          }
          first_waiting_ = ticket;
        }
      }
      const auto changed = [this, seen = changes_]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return changes_ != seen; };
      mutex_.Await(absl::Condition(&changed));
    }
  }
  return LoadReserved(id, load, asked, std::move(evicted));
}

absl::StatusOr<std::shared_ptr<const Network>> NetworkMemory::LoadReserved(const NetworkId& id, const Load& load,
                                                                           bool asked, Evicted evicted) {
  if (!evicted.empty()) watchers_.Notify();
  // Destroys the evicted networks before the new one is loaded, so that both are never in memory together.
  evicted.clear();
  absl::StatusOr<std::shared_ptr<const Network>> network = load();
  std::shared_ptr<const Network> pinned;
  {
    absl::MutexLock lock(&mutex_);
    ++changes_;
    const auto entry = entries_.find(id);
    if (network.ok()) {
      entry->second.network = *std::move(network);
      pinned = PinnedLocked(id, asked);
      --entry->second.pins;  // that of the reservation
      ++loads_;
    } else {
      entries_.erase(entry);
    }
    RefreshHosted();
  }
  watchers_.Notify();
  if (pinned == nullptr) return network.status();
  return pinned;
}

std::shared_ptr<const Network> NetworkMemory::PinnedLocked(const NetworkId& id, bool asked) {
  Entry& entry = entries_.at(id);
  ++entry.pins;
  if (asked) entry.last_used = clock_->Monotonic();
  return {entry.network.get(), [self = shared_from_this(), id](const Network*) { self->Unpin(id); }};
}

void NetworkMemory::Unpin(const NetworkId& id) {
  std::shared_ptr<const Network> freed;  // without the lock
  absl::MutexLock lock(&mutex_);
  const auto entry = entries_.find(id);
  ++changes_;
  if (--entry->second.pins > 0 || hosted_.contains(id)) return;
  freed = std::move(entry->second.network);
  entries_.erase(entry);
}

void NetworkMemory::Expect(const NetworkId& id) {
  {
    absl::MutexLock lock(&mutex_);
    const auto hosted = hosted_.find(id);
    if (hosted == hosted_.end() || ++hosted->second.expected > 1 || InMemory(id)) return;
    RefreshHosted();
  }
  watchers_.Notify();
}

void NetworkMemory::Arrived(const NetworkId& id) {
  {
    absl::MutexLock lock(&mutex_);
    const auto hosted = hosted_.find(id);
    // Forgotten between, and perhaps hosted anew.
    if (hosted == hosted_.end() || hosted->second.expected == 0) return;
    if (--hosted->second.expected > 0 || InMemory(id)) return;
    RefreshHosted();
  }
  watchers_.Notify();
}

absl::StatusOr<bool> NetworkMemory::LoadAhead(const NetworkId& id, const std::set<NetworkId>& keep) {
  Evicted evicted;
  Load load;
  {
    absl::MutexLock lock(&mutex_);
    const auto hosted = hosted_.find(id);
    if (hosted == hosted_.end() || entries_.contains(id) || first_waiting_ != 0) return false;
    if (!Reserve(id, &keep, &evicted)) return false;
    load = hosted->second.load;
  }
  ATOLL_RETURN_IF_ERROR(LoadReserved(id, load, /*asked=*/true, std::move(evicted)).status());
  absl::MutexLock lock(&mutex_);
  ++loads_ahead_;
  return true;
}

bool NetworkMemory::InMemory(const NetworkId& id) const {
  const auto entry = entries_.find(id);
  return entry != entries_.end() && entry->second.network != nullptr;
}

void NetworkMemory::RefreshHosted() {
  auto list = std::make_shared<std::vector<HostedNetwork>>();
  for (const auto& [id, hosted] : hosted_) {
    list->push_back({.id = id, .resident = hosted.expected > 0 || InMemory(id)});
  }
  list_ = std::move(list);
}

std::shared_ptr<const std::vector<HostedNetwork>> NetworkMemory::hosted() const {
  absl::MutexLock lock(&mutex_);
  return list_;
}

NetworkMemoryStats NetworkMemory::stats() const {
  absl::MutexLock lock(&mutex_);
  NetworkMemoryStats stats{.budget_bytes = budget_,
                           .networks = static_cast<int64_t>(hosted_.size()),
                           .resident = static_cast<int64_t>(entries_.size()),
                           .loads = loads_,
                           .loads_ahead = loads_ahead_,
                           .evictions = evictions_};
  for (const auto& [id, entry] : entries_) stats.resident_bytes += entry.bytes;
  return stats;
}

}  // namespace atl::router
