// Callbacks of those who want to know that something changed.
#pragma once

#include <cstdint>
#include <functional>
#include <map>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace atl::router {

// Thread-safe. Callbacks run without a lock; they must not block and must not call back into this.
class Watchers {
 public:
  // Returns a number for Remove.
  int64_t Add(std::function<void()> changed);
  // No call is under way when this returns.
  void Remove(int64_t watcher);
  // Calls all that are there.
  void Notify();

 private:
  absl::Mutex mutex_;
  std::map<int64_t, std::function<void()>> watchers_ ABSL_GUARDED_BY(mutex_);
  int64_t next_ ABSL_GUARDED_BY(mutex_) = 1;
  int64_t calls_ ABSL_GUARDED_BY(mutex_) = 0;  // of Notify, under way
};

}  // namespace atl::router
