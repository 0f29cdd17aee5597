// The networks that one device hosts. It keeps as many of them in memory as its budget allows.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/base/network_id.h"
#include "inference/lane.h"
#include "inference/watchers.h"

namespace atl::router {

class Network;

struct NetworkMemoryStats {
  int64_t budget_bytes = 0;    // 0: no limit
  int64_t resident_bytes = 0;  // networks that are being loaded count
  int64_t networks = 0;        // hosted
  int64_t resident = 0;
  int64_t loads = 0;
  int64_t loads_ahead = 0;  // the part of `loads` that no batch asked for
  int64_t evictions = 0;
  int64_t replicated = 0;  // networks that lie on several devices
};

// Thread-safe. Always owned by a shared_ptr, which every pin holds. When the budget is full, it evicts the network that
// batches have not requested for the longest time, and never a pinned one.
class NetworkMemory : public std::enable_shared_from_this<NetworkMemory> {
 public:
  using Load = std::function<absl::StatusOr<std::shared_ptr<const Network>>()>;

  // `clock` must outlive it.
  NetworkMemory(int64_t budget_bytes, Clock* clock) : budget_(budget_bytes), clock_(clock) {}

  // Makes the network of `bytes` available to Pin. `load` reads it, on any thread, at any time, and again after an
  // eviction. Counted: the network stays hosted until Forget was called as often. Returns RESOURCE_EXHAUSTED with
  // reason EXPERT_DOES_NOT_FIT if the network alone exceeds the budget.
  absl::Status Host(const NetworkId& id, int64_t bytes, Load load);
  // The memory is freed now, or with the last pin.
  void Forget(const NetworkId& id);
  // Forgets the network regardless of how often it was hosted, because it cannot be loaded any more.
  void Abandon(const NetworkId& id);

  // Returns the network, which stays in memory as long as the result lives. Blocks while the network is loaded, and
  // while all networks that could be evicted for it are pinned; waiting callers are served in order. Returns NOT_FOUND
  // with reason NETWORK_NOT_HOSTED, or the error of the load. A thread that holds a pin must not request another one.
  absl::StatusOr<std::shared_ptr<const Network>> Pin(const NetworkId& id);
  // Like Pin, for a check: until a batch pins the network, it is the first to be evicted.
  absl::StatusOr<std::shared_ptr<const Network>> PinForCheck(const NetworkId& id);

  // Announces a pin: from now on the network is listed as resident, so that no other device loads it as well. Counted;
  // call Arrived once per Expect, after the pin or instead of it.
  void Expect(const NetworkId& id);
  void Arrived(const NetworkId& id);

  // Loads a network that no batch has requested. Returns false if that is impossible now: it is in memory already,
  // batches wait for room, or room would require evicting a network that is in `keep`, in use or expected. Blocks while
  // it loads, and so does any caller that pins this network. Returns the error of the load.
  absl::StatusOr<bool> LoadAhead(const NetworkId& id, const std::set<NetworkId>& keep);

  // As ExpertLane::hosted().
  std::shared_ptr<const std::vector<HostedNetwork>> hosted() const;
  Watchers& watchers() { return watchers_; }
  NetworkMemoryStats stats() const;

 private:
  struct Hosted {
    int64_t bytes = 0;
    Load load;
    int32_t times = 0;     // Host without Forget
    int32_t expected = 0;  // Expect without Arrived
  };
  struct Entry {
    std::shared_ptr<const Network> network;  // null while it is loaded
    int64_t bytes = 0;
    int32_t pins = 0;
    absl::Duration last_used = -absl::InfiniteDuration();  // by a batch
  };
  using Evicted = std::vector<std::shared_ptr<const Network>>;

  absl::StatusOr<std::shared_ptr<const Network>> PinOrLoad(const NetworkId& id, bool asked);
  // Reserves room for a network that is not in memory, with one pin; the networks evicted for it go to `evicted`.
  // Returns false if there is too little room, because all others are pinned or, for a load ahead, in `keep` or
  // expected.
  bool Reserve(const NetworkId& id, const std::set<NetworkId>* keep, Evicted* evicted)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Loads into the reserved room, without the lock, after destroying the evicted networks.
  absl::StatusOr<std::shared_ptr<const Network>> LoadReserved(const NetworkId& id, const Load& load, bool asked,
                                                              Evicted evicted);
  std::shared_ptr<const Network> PinnedLocked(const NetworkId& id, bool asked) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Unpin(const NetworkId& id);
  void Erase(const NetworkId& id, bool whatever_times);
  void RefreshHosted() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool InMemory(const NetworkId& id) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const int64_t budget_;
  Clock* const clock_;
  Watchers watchers_;
  mutable absl::Mutex mutex_;
  std::map<NetworkId, Hosted> hosted_ ABSL_GUARDED_BY(mutex_);
  std::map<NetworkId, Entry> entries_ ABSL_GUARDED_BY(mutex_);
  // The ticket of the caller that waits for room and is served before all others; 0: none.
  int64_t first_waiting_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t tickets_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t changes_ ABSL_GUARDED_BY(mutex_) = 0;  // wakes waiting callers
  int64_t loads_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t loads_ahead_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t evictions_ ABSL_GUARDED_BY(mutex_) = 0;
  std::shared_ptr<const std::vector<HostedNetwork>> list_ ABSL_GUARDED_BY(mutex_) =
      std::make_shared<std::vector<HostedNetwork>>();
};

}  // namespace atl::router
