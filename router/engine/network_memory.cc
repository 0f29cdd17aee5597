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
    resident.push_back({.id = other,
                        .bytes = entry.bytes,
                        .pins = entry.pins,
                        .last_used = entry.last_used,
                        .elsewhere = elsewhere_.contains(other),
                        .unasked = entry.unasked});
  }
  const ResidencyDecision decision = DecideResidency(hosted->second.bytes, resident, budget_);
  if (decision.action == ResidencyAction::kRefuse) return DoesNotFitStatus(id, hosted->second.bytes, budget_);
  if (decision.action == ResidencyAction::kWait) {
    if (waiting_.empty()) waiting_.push_back(ticket);
    return Turn::kWait;
  }
  for (const NetworkId& other : decision.evict) Evict(other, evicted);
  entries_[id] = {.bytes = hosted->second.bytes, .pins = 1, .last_used = clock_->Monotonic()};
  if (!evicted->empty()) RefreshHosted();
  return Turn::kLoad;
}

void NetworkMemory::Evict(const NetworkId& id, std::vector<std::shared_ptr<const Network>>* evicted) {
  const auto entry = entries_.find(id);
  evicted->push_back(std::move(entry->second.network));
  entries_.erase(entry);
  ++evictions_;
}

absl::StatusOr<std::shared_ptr<const Network>> NetworkMemory::Pin(const NetworkId& id) {
  return PinOrLoad(id, /*asked=*/true);
}

absl::StatusOr<std::shared_ptr<const Network>> NetworkMemory::PinForCheck(const NetworkId& id) {
  return PinOrLoad(id, /*asked=*/false);
}

absl::StatusOr<std::shared_ptr<const Network>> NetworkMemory::PinOrLoad(const NetworkId& id, bool asked) {
  std::vector<std::shared_ptr<const Network>> evicted;
  Load load;
  {
    absl::MutexLock lock(&mutex_);
    const int64_t ticket = ++tickets_;
    while (true) {
      const absl::StatusOr<Turn> turn = NextTurn(id, ticket, &evicted);
      if (!turn.ok() || *turn != Turn::kWait) LeaveQueue(ticket);
      ATOLL_RETURN_IF_ERROR(turn.status());
      if (*turn == Turn::kTake) return PinnedLocked(id, asked);
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
  return LoadReserved(id, load, asked);
}

absl::StatusOr<std::shared_ptr<const Network>> NetworkMemory::LoadReserved(const NetworkId& id, const Load& load,
                                                                           bool asked) {
  const absl::Duration start = clock_->Monotonic();
  absl::StatusOr<std::shared_ptr<const Network>> network = load();
  const absl::Duration took = clock_->Monotonic() - start;
  std::shared_ptr<const Network> pinned;
  {
    absl::MutexLock lock(&mutex_);
    ++changes_;
    const auto entry = entries_.find(id);
    if (network.ok()) {
      if (const auto hosted = hosted_.find(id); hosted != hosted_.end()) hosted->second.load_time = took;
      loading_time_ += took;
      loaded_bytes_ += entry->second.bytes;
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
  entry.unasked = entry.unasked && !asked;
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

absl::StatusOr<bool> NetworkMemory::LoadAhead(const NetworkId& id, std::span<const NetworkId> evict) {
  std::vector<std::shared_ptr<const Network>> evicted;
  Load load;
  {
    absl::MutexLock lock(&mutex_);
    const auto hosted = hosted_.find(id);
    if (hosted == hosted_.end() || entries_.contains(id) || !waiting_.empty()) return false;
    int64_t held = hosted->second.bytes;
    for (const auto& [other, entry] : entries_) held += entry.bytes;
    for (const NetworkId& other : evict) {
      const auto entry = entries_.find(other);
      if (entry == entries_.end()) continue;
      const auto expected = hosted_.find(other);
      if (entry->second.pins > 0 || (expected != hosted_.end() && expected->second.expected > 0)) return false;
      held -= entry->second.bytes;
    }
    if (budget_ > 0 && held > budget_) return false;
    for (const NetworkId& other : evict) {
      if (entries_.contains(other)) Evict(other, &evicted);
    }
    entries_[id] = {.bytes = hosted->second.bytes, .pins = 1, .last_used = clock_->Monotonic()};
    if (!evicted.empty()) RefreshHosted();
    load = hosted->second.load;
  }
  if (!evicted.empty()) watchers_.Notify();
  evicted.clear();
  ATOLL_RETURN_IF_ERROR(LoadReserved(id, load, /*asked=*/true).status());
  absl::MutexLock lock(&mutex_);
  ++loads_ahead_;
  return true;
}

void NetworkMemory::SetElsewhere(std::set<NetworkId> elsewhere) {
  absl::MutexLock lock(&mutex_);
  elsewhere_ = std::move(elsewhere);
}

bool NetworkMemory::InMemory(const NetworkId& id) const {
  const auto entry = entries_.find(id);
  return entry != entries_.end() && entry->second.network != nullptr;
}

void NetworkMemory::LeaveQueue(int64_t ticket) {
  if (waiting_.empty() || waiting_.front() != ticket) return;
  waiting_.pop_front();
  ++changes_;
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

NetworkMemoryView NetworkMemory::view() const {
  absl::MutexLock lock(&mutex_);
  NetworkMemoryView view;
  std::map<NetworkId, ResidentNetwork> resident;
  for (const auto& [id, entry] : entries_) {
    resident[id] = {.id = id, .bytes = entry.bytes, .pins = entry.pins, .last_used = entry.last_used};
  }
  const absl::Duration per_byte =
      loaded_bytes_ > 0 ? loading_time_ / static_cast<double>(loaded_bytes_) : absl::ZeroDuration();
  for (const auto& [id, hosted] : hosted_) {
    const bool measured = hosted.load_time > absl::ZeroDuration();
    view.hosted.push_back({.id = id,
                           .bytes = hosted.bytes,
                           .load_time = measured ? hosted.load_time : per_byte * static_cast<double>(hosted.bytes)});
    if (hosted.expected == 0) continue;
    ResidentNetwork& coming = resident.try_emplace(id, ResidentNetwork{.id = id, .bytes = hosted.bytes}).first->second;
    coming.pins += hosted.expected;
  }
  for (const auto& [id, network] : resident) view.resident.push_back(network);
  return view;
}

}  // namespace atl::router
