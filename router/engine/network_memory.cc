#include "router/engine/network_memory.h"

#include <algorithm>
#include <utility>

#include "common/base/errors.h"
#include "common/base/status_macros.h"
#include "fmt/format.h"

namespace atl::router {

absl::Status NetworkMemory::Host(const NetworkId& id, int64_t bytes, Load load) {
  if (DecideResidency(bytes, {}, budget_).action == ResidencyAction::kRefuse) {
    return DoesNotFitStatus(id, bytes, budget_);
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

absl::StatusOr<NetworkMemory::Turn> NetworkMemory::NextTurn(const NetworkId& id, int64_t ticket,
                                                            std::vector<std::shared_ptr<const Network>>* evicted) {
  const auto hosted = hosted_.find(id);
  if (hosted == hosted_.end()) {
    return MakeError(absl::StatusCode::kNotFound, "NETWORK_NOT_HOSTED",
                     fmt::format("{} is not hosted here", Describe(id)));
  }
  // Who waits for room comes first, or those who find theirs in memory would keep it for ever.
  if (!waiting_.empty() && waiting_.front() != ticket) return Turn::kWait;
  if (const auto entry = entries_.find(id); entry != entries_.end()) {
    return entry->second.network != nullptr ? Turn::kTake : Turn::kWait;
  }
  std::vector<ResidentNetwork> resident;
  for (const auto& [other, entry] : entries_) {
    resident.push_back({.id = other, .bytes = entry.bytes, .pins = entry.pins, .last_used = entry.last_used});
  }
  const ResidencyDecision decision = DecideResidency(hosted->second.bytes, resident, budget_);
  if (decision.action == ResidencyAction::kRefuse) return DoesNotFitStatus(id, hosted->second.bytes, budget_);
  if (decision.action == ResidencyAction::kWait) {
    if (waiting_.empty()) waiting_.push_back(ticket);
    return Turn::kWait;
  }
  for (const NetworkId& other : decision.evict) {
    const auto entry = entries_.find(other);
    evicted->push_back(std::move(entry->second.network));
    entries_.erase(entry);
    ++evictions_;
  }
  entries_[id] = {.bytes = hosted->second.bytes, .pins = 1, .last_used = clock_->Monotonic()};
  if (!evicted->empty()) RefreshHosted();
  return Turn::kLoad;
}

absl::StatusOr<std::shared_ptr<const Network>> NetworkMemory::Pin(const NetworkId& id) {
  std::vector<std::shared_ptr<const Network>> evicted;
  Load load;
  {
    absl::MutexLock lock(&mutex_);
    const int64_t ticket = ++tickets_;
    while (true) {
      const absl::StatusOr<Turn> turn = NextTurn(id, ticket, &evicted);
      if (!turn.ok() || *turn != Turn::kWait) LeaveQueue(ticket);
      ATOLL_RETURN_IF_ERROR(turn.status());
      if (*turn == Turn::kTake) return PinnedLocked(id);
      if (*turn == Turn::kLoad) {
        load = hosted_.at(id).load;
        break;
      }
      const auto changed = [this, seen = changes_]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return changes_ != seen; };
      mutex_.Await(absl::Condition(&changed));
    }
  }
  if (!evicted.empty()) watchers_.Notify();
  // What gives way is gone before its successor comes: the two are never in memory together.
  evicted.clear();
  return LoadReserved(id, load);
}

absl::StatusOr<std::shared_ptr<const Network>> NetworkMemory::LoadReserved(const NetworkId& id, const Load& load) {
  absl::StatusOr<std::shared_ptr<const Network>> network = load();
  std::shared_ptr<const Network> pinned;
  {
    absl::MutexLock lock(&mutex_);
    ++changes_;
    const auto entry = entries_.find(id);
    if (network.ok()) {
      entry->second.network = *std::move(network);
      pinned = PinnedLocked(id);
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

std::shared_ptr<const Network> NetworkMemory::PinnedLocked(const NetworkId& id) {
  Entry& entry = entries_.at(id);
  ++entry.pins;
  entry.last_used = clock_->Monotonic();
  return {entry.network.get(), [self = shared_from_this(), id](const Network*) { self->Unpin(id); }};
}

void NetworkMemory::Unpin(const NetworkId& id) {
  std::shared_ptr<const Network> freed;  // without the lock
  absl::MutexLock lock(&mutex_);
  const auto entry = entries_.find(id);
  entry->second.last_used = clock_->Monotonic();
  ++changes_;
  if (--entry->second.pins > 0 || hosted_.contains(id)) return;
  freed = std::move(entry->second.network);
  entries_.erase(entry);
}

void NetworkMemory::LeaveQueue(int64_t ticket) {
  if (waiting_.empty() || waiting_.front() != ticket) return;
  waiting_.pop_front();
  ++changes_;
}

void NetworkMemory::RefreshHosted() {
  auto list = std::make_shared<std::vector<HostedNetwork>>();
  for (const auto& [id, hosted] : hosted_) {
    const auto entry = entries_.find(id);
    list->push_back({.id = id, .resident = entry != entries_.end() && entry->second.network != nullptr});
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
                           .evictions = evictions_};
  for (const auto& [id, entry] : entries_) stats.resident_bytes += entry.bytes;
  return stats;
}

}  // namespace atl::router
