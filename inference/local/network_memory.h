// The networks that one device hosts, as many of them in its memory as its budget allows.
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
  int64_t resident_bytes = 0;  // what is being loaded counts
  int64_t networks = 0;        // hosted
  int64_t resident = 0;
  int64_t loads = 0;
  int64_t loads_ahead = 0;  // of these, those that no batch asked for
  int64_t evictions = 0;
  int64_t replicated = 0;  // networks that lie on several devices
};

// Thread-safe. Always owned by a shared_ptr: what is pinned keeps it. Where the budget is full, the network that
// batches have not asked for longest is evicted, and never one that is pinned.
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

  // Loads a network that no batch has asked for. False when that cannot be now: it is there already, batches wait for
  // room, or there is too little of it without evicting what is in `keep`, in use or expected. Blocks while it loads,
  // as does any caller that pins this network. Or the error of its load.
  absl::StatusOr<bool> LoadAhead(const NetworkId& id, const std::set<NetworkId>& keep);

  // Of ExpertLane.
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
  // Reserves room for a network that is not in memory, pinned once; what gives way for it is in `evicted`. False when
  // there is too little: all else is pinned or, for a load ahead, in `keep` or expected.
  bool Reserve(const NetworkId& id, const std::set<NetworkId>* keep, Evicted* evicted)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Loads into the reserved room, once what gave way is gone, without the lock.
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
  // The caller that waits for room, before which no other gets any; 0: none.
  int64_t first_waiting_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t tickets_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t changes_ ABSL_GUARDED_BY(mutex_) = 0;  // wakes those who wait
  int64_t loads_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t loads_ahead_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t evictions_ ABSL_GUARDED_BY(mutex_) = 0;
  std::shared_ptr<const std::vector<HostedNetwork>> list_ ABSL_GUARDED_BY(mutex_) =
      std::make_shared<std::vector<HostedNetwork>>();
};

}  // namespace atl::router
