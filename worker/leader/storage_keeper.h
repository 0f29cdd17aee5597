// Renews the keys of the task that the leader holds, on its own thread, before they expire.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/spec/task.h"
#include "worker/leader/coordinator_client.h"

namespace atl::worker {

// Returns when to request new keys: after two thirds of their life; after `failures` failed calls in a row, the last
// one `now`, after a tenth of the remaining time, but at least a second later. InfiniteFuture for keys that never
// expire. Pure.
absl::Time RenewalTime(absl::Time now, absl::Time came, absl::Time expires, int64_t failures);

// Thread-safe. Owns the thread, joined by the destructor.
class StorageKeeper {
 public:
  // Called on the keeper's thread with the new keys of the held lease; must not block.
  using Renewed = std::function<void(const spec::LeaseToken&, const spec::StorageGrant&)>;

  StorageKeeper(CoordinatorClient* coordinator, Clock* clock, Renewed renewed);
  ~StorageKeeper();

  void Hold(const spec::LeaseToken& token, const spec::StorageGrant& grant);
  void LetGo();

 private:
  struct Held {
    spec::LeaseToken token;
    absl::Time came;
    absl::Time expires;
    int64_t failures = 0;
    absl::Time due;
  };

  void Loop();
  void Renew(const Held& held);

  CoordinatorClient* const coordinator_;
  Clock* const clock_;
  const Renewed renewed_;

  absl::Mutex mutex_;
  std::optional<Held> held_ ABSL_GUARDED_BY(mutex_);  // a lease whose keys expire
  int64_t changes_ ABSL_GUARDED_BY(mutex_) = 0;
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace atl::worker
