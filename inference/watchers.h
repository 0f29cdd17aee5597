// Callbacks that are called when an object changes.
#pragma once

#include <cstdint>
#include <functional>
#include <map>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace atl::router {

// Thread-safe. Callbacks run without a lock; they must not block and must not call this object.
class Watchers {
 public:
  // Returns an id for Remove.
  int64_t Add(std::function<void()> changed);
  // When this returns, no callback is running.
  void Remove(int64_t watcher);
  // Calls all registered callbacks.
  void Notify();

 private:
  absl::Mutex mutex_;
  std::map<int64_t, std::function<void()>> watchers_ ABSL_GUARDED_BY(mutex_);
  int64_t next_ ABSL_GUARDED_BY(mutex_) = 1;
  int64_t calls_ ABSL_GUARDED_BY(mutex_) = 0;  // calls of Notify that are running
};

}  // namespace atl::router
