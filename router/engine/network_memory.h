// The networks that one device hosts, as many of them in its memory as its budget allows.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "router/engine/lane.h"
#include "router/engine/watchers.h"
#include "router/policy/residency.h"

namespace atl::router {

class Network;

struct NetworkMemoryStats {
  int64_t budget_bytes = 0;    // 0: no limit
  int64_t resident_bytes = 0;  // what is being loaded counts
  int64_t networks = 0;        // hosted
  int64_t resident = 0;
  int64_t loads = 0;
  int64_t loads_ahead = 0;  // of these, those that no batch asked for
  int64_t evictions = 0;
  int64_t replicated = 0;  // networks that lie on several devices
};

// One moment of a NetworkMemory.
struct NetworkMemoryView {
  struct Hosted {
    NetworkId id;
    int64_t bytes = 0;
    absl::Duration load_time;  // of the last load here; before one, as long as others took by bytes
  };
  std::vector<Hosted> hosted;  // ascending
  // In memory or to come: then they count as pinned.
  std::vector<ResidentNetwork> resident;  // ascending
};

// Thread-safe. Always owned by a shared_ptr: what is pinned keeps it.
class NetworkMemory : public std::enable_shared_from_this<NetworkMemory> {
 public:
  using Load = std::function<absl::StatusOr<std::shared_ptr<const Network>>()>;

  // `clock` must outlive it.
  NetworkMemory(int64_t budget_bytes, Clock* clock) : budget_(budget_bytes), clock_(clock) {}

  // From now on the network of `bytes` can be pinned; `load` brings it in, from any thread, now or later, again after
  // it had to give way. Counted: hosted until it was forgotten as often. RESOURCE_EXHAUSTED with reason
  // EXPERT_DOES_NOT_FIT when the budget is too small for it alone.
  absl::Status Host(const NetworkId& id, int64_t bytes, Load load);
  // Its memory is given back now, or with the last pin.
  void Forget(const NetworkId& id);
  // Forgets it however often it was hosted, because it cannot be loaded any more.
  void Abandon(const NetworkId& id);

  // The network, in memory as long as the result lives. Blocks while it is loaded, and while everything that could give
  // way for it is pinned; those who wait so go in their order. NOT_FOUND with reason NETWORK_NOT_HOSTED, or the error
  // of its load. A thread that holds a pin must not ask for another one.
  absl::StatusOr<std::shared_ptr<const Network>> Pin(const NetworkId& id);
  // The same for a check: until a batch pins the network, it is the first to give way.
  absl::StatusOr<std::shared_ptr<const Network>> PinForCheck(const NetworkId& id);

  // Somebody will pin the network here: from now on it is listed as resident, so that no other device loads it as well.
  // Counted; each is taken back by Arrived, after the pin or instead of it.
  void Expect(const NetworkId& id);
  void Arrived(const NetworkId& id);

  // Loads a network that nobody has asked for, once `evict` is gone from here. False when that cannot be now: it is
  // there already, one of `evict` is in use, there is too little room, or batches wait for room. Blocks while it loads,
  // and nobody else but who pins this network. Or the error of its load.
  absl::StatusOr<bool> LoadAhead(const NetworkId& id, std::span<const NetworkId> evict);
  // What lies on other devices too gives way first.
  void SetElsewhere(std::set<NetworkId> elsewhere);

  // Of ExpertLane.
  std::shared_ptr<const std::vector<HostedNetwork>> hosted() const;
  Watchers& watchers() { return watchers_; }
  NetworkMemoryStats stats() const;
  NetworkMemoryView view() const;

 private:
  struct Hosted {
    int64_t bytes = 0;
    Load load;
    int32_t times = 0;         // Host without Forget
    int32_t expected = 0;      // Expect without Arrived
    absl::Duration load_time;  // zero before a load
  };
  struct Entry {
    std::shared_ptr<const Network> network;  // null while it is loaded
    int64_t bytes = 0;
    int32_t pins = 0;
    absl::Duration last_used;
    bool unasked = true;  // by a batch
  };

  enum class Turn { kTake, kLoad, kWait };
  // What a caller of Pin does next; of kLoad the room is reserved and what gives way is in `evicted`.
  absl::StatusOr<Turn> NextTurn(const NetworkId& id, int64_t ticket,
                                std::vector<std::shared_ptr<const Network>>* evicted)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<std::shared_ptr<const Network>> PinOrLoad(const NetworkId& id, bool asked);
  // Loads into the reserved room, without the lock.
  absl::StatusOr<std::shared_ptr<const Network>> LoadReserved(const NetworkId& id, const Load& load, bool asked);
  std::shared_ptr<const Network> PinnedLocked(const NetworkId& id, bool asked) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Unpin(const NetworkId& id);
  void Erase(const NetworkId& id, bool whatever_times);
  void LeaveQueue(int64_t ticket) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void RefreshHosted() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool InMemory(const NetworkId& id) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Evict(const NetworkId& id, std::vector<std::shared_ptr<const Network>>* evicted)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const int64_t budget_;
  Clock* const clock_;
  Watchers watchers_;
  mutable absl::Mutex mutex_;
  std::map<NetworkId, Hosted> hosted_ ABSL_GUARDED_BY(mutex_);
  std::map<NetworkId, Entry> entries_ ABSL_GUARDED_BY(mutex_);
  // Who waits for room, in order.
  std::deque<int64_t> waiting_ ABSL_GUARDED_BY(mutex_);
  int64_t tickets_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t changes_ ABSL_GUARDED_BY(mutex_) = 0;  // wakes those who wait
  int64_t loads_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t loads_ahead_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t loaded_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Duration loading_time_ ABSL_GUARDED_BY(mutex_);  // of all loads
  int64_t evictions_ ABSL_GUARDED_BY(mutex_) = 0;
  std::set<NetworkId> elsewhere_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<const std::vector<HostedNetwork>> list_ ABSL_GUARDED_BY(mutex_) =
      std::make_shared<std::vector<HostedNetwork>>();
};

}  // namespace atl::router
